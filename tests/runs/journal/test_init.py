"""Each vendor has its journal; another one is refused."""

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from gnl_django.runs.journal import journal_for
from gnl_django.runs.journal.postgresql import PostgresJournal
from gnl_django.runs.journal.rowwise import RowwiseJournal
from tests.support import vendor


@pytest.mark.django_db
def test_the_journal_is_the_vendors() -> None:
    expected = PostgresJournal if vendor() == "postgresql" else RowwiseJournal
    assert type(journal_for("default")) is expected
    assert journal_for("default").using == "default"


def test_another_vendor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections["default"], "vendor", "oracle")
    with pytest.raises(ImproperlyConfigured, match=r"oracle \(alias 'default'\)"):
        journal_for("default")
