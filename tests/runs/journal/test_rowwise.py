"""MySQL and SQLite: the rights first, then the write, in one transaction."""

import pytest

from gnl_django.models import Run
from gnl_django.runs.journal import journal_for
from gnl_django.runs.journal.base import Lock, NewRun, NewStep
from gnl_django.runs.rights import Right, lock_right
from tests.conformance.conftest import NOON, FailPoint
from tests.conformance.helpers import statements
from tests.conformance.support_runs import Crash, crashes, make_run, run_row, steps_of

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.mysql("PostgreSQL does it in one statement"),
    pytest.mark.sqlite,
]

NEW = NewRun("r1", "acme", True, None, None, None)
LOCK = Lock("t" * 32, "h", 30.0)


def test_a_lost_right_stops_before_the_row_is_made() -> None:
    journal = journal_for("default")
    lost = Right("gnl_django_job", 1, "claim_token", "f" * 32, "running")
    with statements() as texts:
        assert journal.enter(NEW, [lost], None) is None
    assert not [text for text in texts if "INSERT" in text]
    assert Run.objects.count() == 0


def test_of_several_rights_each_has_to_hold() -> None:
    journal = journal_for("default")
    runs = [
        make_run(f"r{n}", lock_token="f" * 32, lock_holder="h", lock_expires_at=NOON,
                 cancel_requested_at=NOON if n == 2 else None)
        for n in range(3)
    ]  # fmt: skip
    step = NewStep(runs[0].pk, "s", 1, "plain", 1, output="1")
    good = [lock_right(run.pk, "f" * 32) for run in runs]
    assert not journal.add(step, [*good[:2], lock_right(runs[2].pk, "0" * 32)]).held
    assert steps_of("r0") == []
    written = journal.add(step, good)
    assert (written.held, written.cancel, written.changed) == (True, True, True)


def test_a_crash_before_the_commit_leaves_nothing(failpoint: FailPoint) -> None:
    def crash() -> None:
        raise Crash

    journal = journal_for("default")
    row = journal.enter(NEW, (), LOCK)
    assert row is not None
    failpoint("step.journaled", crash)
    with crashes():
        journal.add(NewStep(row.pk, "s", 1, "plain", 1, output="1"), ())
    assert steps_of() == []


def test_a_refused_entry_changes_nothing() -> None:
    journal = journal_for("default")
    make_run(lock_token="f" * 32, lock_holder="x", lock_expires_at=NOON.replace(year=2999))
    before = Run.objects.values().get()
    row = journal.enter(NEW, (), LOCK)
    assert row is not None
    assert (row.entered, row.busy_for > 0) == (False, True)
    assert Run.objects.values().get() == before
    Run.objects.update(state="completed", finished_at=NOON)
    row = journal.enter(NEW, (), LOCK)
    assert row is not None
    assert (row.entered, row.state, row.busy_for) == (False, "completed", 0.0)
    assert run_row().org == ""
