"""Each vendor's words for spans of time, to the microsecond."""

from datetime import timedelta

import pytest

from gnl_django.core import clock
from gnl_django.runs.journal import journal_for
from gnl_django.runs.journal.words import WORDS
from tests.conformance.conftest import NOON
from tests.conformance.support_runs import make_run, run_row
from tests.support import vendor

pytestmark = pytest.mark.django_db

MICRO = timedelta(microseconds=1)
SPANS = [
    timedelta(0), MICRO, -MICRO, timedelta(milliseconds=1), timedelta(seconds=1),
    timedelta(seconds=1) - MICRO, timedelta(days=400), -timedelta(days=400),
]  # fmt: skip
INSTANTS = [
    NOON, NOON + MICRO, NOON - MICRO, NOON + timedelta(microseconds=999_500),
    NOON + timedelta(microseconds=999_499), NOON.replace(month=12, day=31, hour=23, minute=59),
]  # fmt: skip


@pytest.mark.parametrize("at", INSTANTS, ids=lambda at: at.isoformat())
def test_an_age_is_exact(frozen: clock.Override, at: object) -> None:
    frozen.set(at)  # type: ignore[arg-type]
    journal = journal_for("default")
    for span in SPANS:
        run_id = f"r {span}"
        make_run(run_id, lock_token="t", lock_holder="h", lock_expires_at=at - span)  # type: ignore[operator]
        found = journal.row(run_id)
        assert found is not None
        assert found[1] == pytest.approx(span.total_seconds(), abs=4e-7)


def test_a_duration_is_added_to_the_present(frozen: clock.Override) -> None:
    journal = journal_for("default")
    make_run()
    for seconds in (0, 30, 0.25, -5, 86_400):
        journal.change(
            f"UPDATE gnl_django_run SET updated_at = {journal.after('ttl')}",
            {"ttl": journal.words.duration(seconds)},
        )
        assert run_row().updated_at == NOON + timedelta(seconds=seconds)


def test_every_vendor_has_its_words() -> None:
    assert set(WORDS) == {"postgresql", "mysql", "sqlite"}
    assert vendor() in WORDS
