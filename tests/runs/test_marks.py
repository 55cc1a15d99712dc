"""Marks: keys are checked whole, values wrapped."""

import pytest

from gnl_django.models import Mark
from gnl_django.runs import marks
from gnl_django.runs.journal import journal_for

pytestmark = pytest.mark.django_db


def test_a_runs_key_begins_with_its_id() -> None:
    assert marks.key_of("k") == "k"
    assert marks.key_of("k", "job:7") == "job:7:k"
    assert marks.key_of("k" * 255) == "k" * 255
    with pytest.raises(ValueError, match="255"):
        marks.key_of("k" * 250, "job:7:")


def test_an_absent_mark_is_not_a_none() -> None:
    journal = journal_for("default")
    assert marks.look(journal, "k") is marks.ABSENT
    assert marks.freeze(journal, "k", None) is None
    assert marks.look(journal, "k") is None
    assert marks.freeze(journal, "k", 5) is None
    assert Mark.objects.get().value == {"v": None}
