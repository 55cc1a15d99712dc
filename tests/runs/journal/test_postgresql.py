"""PostgreSQL: rights and write are one statement, and a right that goes meanwhile stops it."""

import threading

import pytest
from django.db import connection, transaction

from gnl_django.models import Run, Step
from gnl_django.runs.journal import journal_for
from gnl_django.runs.journal.base import Lock, NewRun, NewStep
from gnl_django.runs.rights import lock_right
from tests.conformance.conftest import NOON, Aside, FailPoint
from tests.conformance.helpers import DEADLINE, statements
from tests.conformance.support_runs import make_run, run_row, steps_of
from tests.support import wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.postgres("its statements"),
]

NEW = NewRun("r1", "", True, None, None, None)
LOCK = Lock("t" * 32, "h", 30.0)


def done(run_pk: int) -> NewStep:
    return NewStep(run_pk, "s", 1, "plain", 1, output="1")


def waits(pid: int) -> bool:
    """Tell whether a session waits for a lock."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute("SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s", [pid])
        return bool(cursor.fetchone()[0] == "Lock")


def test_entering_and_writing_are_one_statement_each(failpoint: FailPoint) -> None:
    journal = journal_for("default")
    with statements() as texts:
        row = journal.enter(NEW, (), LOCK)
        assert row is not None
        rights = [lock_right(row.pk, LOCK.token)]
        assert journal.add(done(row.pk), rights).changed
        assert journal.freeze_input(row.pk, "1", "h", rights).changed
    assert len(texts) == 3
    failpoint("step.journaled", lambda: None)  # armed: it can stop before its COMMIT
    assert not journal.add(done(row.pk), rights).changed
    assert steps_of() == [("s", "done", 1)]


def test_who_is_refused_learns_why_by_a_second_statement() -> None:
    journal = journal_for("default")
    make_run(lock_token="f" * 32, lock_holder="x", lock_expires_at=NOON.replace(year=2999))
    with statements() as texts:
        row = journal.enter(NEW, (), LOCK)
    assert row is not None
    assert (row.entered, row.busy_for > 0, len(texts)) == (False, True, 2)


def test_a_right_that_is_taken_while_the_write_waits_for_it_writes_nothing(aside: Aside) -> None:
    run = make_run(lock_token="f" * 32, lock_holder="h", lock_expires_at=NOON)
    rights = [lock_right(run.pk, "f" * 32)]
    pids: list[int] = []
    started = threading.Event()

    def write() -> bool:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            pids.append(cursor.fetchone()[0])
        started.set()
        return journal_for("default").add(done(run.pk), rights).held

    with transaction.atomic():
        Run.objects.update(lock_token="0" * 32)
        waiting = aside(write)
        assert started.wait(DEADLINE)
        wait_until(lambda: waits(pids[0]), 30)
    assert waiting.result() is False
    assert Step.objects.count() == 0
    assert run_row().lock_token == "0" * 32
