"""Atomic steps: body and record are one transaction, so the effect happens exactly once (D30-D36).

Effects are rows of an ordinary model of the project; their number must be that of journal rows.
"""

import sqlite3
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import IntegrityError, OperationalError, connection, connections, transaction
from django.db.transaction import TransactionManagementError

from gnl_django import JobContext, RunCanceled, StaleClaim, cancel_run, enqueue, run_durable
from gnl_django.core.revocation import Revocation
from gnl_django.models import Job, Run, Step
from tests.conformance.conftest import Declare, FailPoint, MakeWorker
from tests.conformance.helpers import job_of
from tests.conformance.support_runs import (
    Body,
    Crash,
    claimed_elsewhere,
    crash_at,
    crashes,
    executor,
    steps_of,
)
from tests.studio.aliases import second_alias
from tests.support import vendor

pytestmark = pytest.mark.django_db(transaction=True)


def effect(name: str = "effect") -> str:
    """Leave a row."""
    Group.objects.create(name=name)
    return name


def effects() -> int:
    """Return how many rows were left."""
    return Group.objects.count()


@pytest.mark.row("runs", "D30")
@pytest.mark.parametrize("error", [ValueError("no"), Crash(), KeyboardInterrupt()], ids=repr)
def test_a_body_that_raises_leaves_no_effect_and_no_row(error: BaseException) -> None:
    def body() -> None:
        effect()
        raise error

    with pytest.raises(type(error)):
        executor().step("s", body, atomic=True)
    assert (effects(), steps_of()) == (0, [])
    assert executor().step("s", effect, atomic=True) == "effect"
    assert (effects(), steps_of()) == (1, [("s", "done", "effect")])


@pytest.mark.row("runs", "D30", "D88")
@pytest.mark.parametrize("point", ["step.begin", "step.effect_done", "step.journaled"])
def test_a_crash_before_the_commit_takes_everything_back(failpoint: FailPoint, point: str) -> None:
    crash_at(failpoint, point)
    with crashes():
        executor().step("s", effect, atomic=True)
    assert (effects(), steps_of()) == (0, [])
    assert executor().step("s", effect, atomic=True) == "effect"
    assert effects() == len(steps_of()) == 1


@pytest.mark.row("runs", "D30", "D88")
def test_a_crash_after_the_commit_takes_nothing_back(failpoint: FailPoint) -> None:
    crash_at(failpoint, "step.committed")
    with crashes():
        executor().step("s", effect, atomic=True)
    assert effects() == len(steps_of()) == 1
    assert executor().step("s", effect, atomic=True) == "effect"
    assert effects() == 1


@pytest.mark.row("runs", "D31", "D88")
@pytest.mark.postgres("SQLite has one writer: nobody is quicker")
@pytest.mark.mysql
def test_the_slower_of_two_executors_loses_its_effects_and_has_the_others_output(
    aside: Any,
) -> None:
    def slow() -> str:
        effect("slow")
        assert aside(lambda: executor().step("s", effect, "quick", atomic=True)).result() == "quick"
        return "slow"

    assert executor().step("s", slow, atomic=True) == "quick"
    assert list(Group.objects.values_list("name", flat=True)) == ["quick"]
    assert steps_of() == [("s", "done", "quick")]


@pytest.mark.row("runs", "D31")
def test_what_was_recorded_after_the_entry_is_seen_before_the_body() -> None:
    late, body = executor(), Body("late")
    executor().step("s", effect, atomic=True)
    assert late.step("s", body, atomic=True) == "effect"
    assert (body.count, effects()) == (0, 1)


@pytest.mark.row("runs", "D32")
def test_inside_a_transaction_of_the_caller_it_is_refused() -> None:
    run = executor()
    with (
        pytest.raises(RuntimeError, match="durable atomic block"),
        transaction.atomic(),
    ):
        run.step("s", effect, atomic=True)
    assert (effects(), steps_of()) == (0, [])
    with transaction.atomic():
        assert run.step("plain", Body(1)) == 1


@pytest.mark.row("runs", "D17")
@pytest.mark.parametrize("state", [None, "released", "failed"])
def test_a_side_effect_inside_a_transaction_of_the_caller_is_refused(state: str | None) -> None:
    """Its claim would not be committed before the body: a crash would take it back."""
    if state is not None:
        claimed_elsewhere("s", state=state)
    run, body = executor(), Body("paid")
    before = steps_of()
    with pytest.raises(RuntimeError, match="inside"), transaction.atomic():
        run.step("s", body, side_effect=True, recover=lambda info: {"done": False})
    assert (body.count, steps_of()) == (0, before)


@pytest.mark.row("runs", "D32")
@pytest.mark.django_db(transaction=False)
def test_in_a_test_case_all_modes_work() -> None:
    def work(run: Any) -> list[Any]:
        return [
            run.step("atomic", effect, atomic=True),
            run.step("plain", Body(1)),
            run.step("effect", Body(2), side_effect=True),
        ]

    assert run_durable("in a test", work) == ["effect", 1, 2]
    assert run_durable("in a test", work) == ["effect", 1, 2]
    assert effects() == 1


def fault(code: int | str) -> Callable[[], None]:
    """Return what makes the server, or for SQLite the driver, answer with an error."""

    def act() -> None:
        if vendor() == "sqlite":
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = int(code)
            raise OperationalError("database is locked") from error
        with connection.cursor() as cursor:
            if vendor() == "mysql":
                cursor.execute(f"SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = {code}")
            else:
                cursor.execute(f"DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{code}'; END $$")

    return act


CODES = [
    pytest.param("40P01", id="deadlock", marks=pytest.mark.postgres("its SQLSTATE")),
    pytest.param("40001", id="serialization", marks=pytest.mark.postgres("its SQLSTATE")),
    pytest.param(1213, id="1213", marks=pytest.mark.mysql("its number")),
    pytest.param(1205, id="1205", marks=pytest.mark.mysql("its number")),
    pytest.param(5, id="BUSY", marks=pytest.mark.sqlite("its number")),
]


@pytest.mark.row("runs", "D33")
@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("point", ["step.effect_done", "step.journaled"])
def test_a_transient_error_repeats_the_whole_at_most_three_times(
    failpoint: FailPoint, code: Any, point: str
) -> None:
    bodies: list[int] = []

    def body() -> str:
        bodies.append(1)
        return effect()

    failpoint(point, lambda: fault(code)() if len(bodies) < 3 else None)
    assert executor().step("s", body, atomic=True) == "effect"
    assert (len(bodies), effects(), steps_of()) == (3, 1, [("s", "done", "effect")])

    bodies.clear()
    Group.objects.all().delete()
    failpoint(point, fault(code))
    with pytest.raises(OperationalError):
        executor("r2").step("s", body, atomic=True)
    assert (len(bodies), effects(), steps_of("r2")) == (3, 0, [])


@pytest.mark.row("runs", "D33")
def test_another_error_of_the_database_is_not_repeated() -> None:
    body = Body()

    def twice() -> None:
        body()
        effect()
        effect()

    with pytest.raises(IntegrityError):
        executor().step("s", twice, atomic=True)
    assert (body.count, effects(), steps_of()) == (1, 0, [])


@pytest.mark.row("runs", "D34")
def test_coroutines_and_side_effects_cannot_be_atomic() -> None:
    async def body() -> None: ...

    run, other = executor(), Body()
    for wrong in (body, partial(body), partial(partial(body))):
        with pytest.raises(TypeError, match="one transaction"):
            run.step("s", wrong, atomic=True)
    with pytest.raises(TypeError, match="not both"):
        run.step("s", other, atomic=True, side_effect=True)
    for wrong in ({"recover": other}, {"claim_ttl": 5}):
        for atomic in (True, False):
            with pytest.raises(TypeError, match="are for side_effect steps"):
                run.step("s", other, atomic=atomic, **wrong)
    assert (other.count, steps_of()) == (0, [])


@pytest.mark.row("runs", "D35", "D88")
def test_a_job_lost_during_the_body_takes_its_effects_back(
    declare: Declare, make_worker: MakeWorker
) -> None:
    seen: list[Any] = []

    def handle(payload: Any, ctx: JobContext) -> None:
        def body() -> str:
            # SQLite: nobody else can write meanwhile, so the row is changed from within.
            Job.objects.filter(id=ctx.job_id).update(claim_token="f" * 32)
            return effect()

        try:
            ctx.step("s", body, atomic=True)
        finally:
            seen.append(ctx.signal.why)

    errors: list[Any] = []
    job_id = declare("t.lost", handle).enqueue()
    token = "f" * 32
    make_worker(on_error=lambda *args: errors.append(args)).run_once()
    assert seen == ["lease-lost"]
    assert (effects(), steps_of(f"job:{job_id}")) == (0, [])
    assert (job_of(job_id).state, job_of(job_id).claim_token == token) == ("running", False)
    assert errors == []


@pytest.mark.row("runs", "D35")
def test_a_run_whose_lock_was_taken_during_the_body_takes_its_effects_back() -> None:
    def work(run: Any) -> None:
        def body() -> str:
            Run.objects.update(lock_token="f" * 32)
            return effect()

        run.step("s", body, atomic=True)

    with pytest.raises(StaleClaim, match="nothing was written"):
        run_durable("r1", work)
    assert (effects(), steps_of()) == (0, [])


@pytest.mark.row("runs", "D36")
@pytest.mark.postgres("SQLite has one writer: a second connection cannot write meanwhile")
@pytest.mark.mysql
def test_an_effect_on_another_alias_is_not_covered() -> None:
    with second_alias("other") as alias:

        def body() -> None:
            effect("covered")
            Group.objects.using(alias).create(name="not covered")
            raise LookupError

        with pytest.raises(LookupError):
            executor().step("s", body, atomic=True)
    assert list(Group.objects.values_list("name", flat=True)) == ["not covered"]


# what a body may do to its connection


@pytest.mark.row("runs", "D30")
def test_a_job_enqueued_by_an_atomic_step_is_enqueued_once(
    declare: Declare, failpoint: FailPoint
) -> None:
    declare("t.child")
    crash_at(failpoint, "step.journaled")
    with crashes():
        executor().step("s", partial(enqueue, "t.child"), atomic=True)
    assert Job.objects.count() == 0
    job_id = executor().step("s", partial(enqueue, "t.child"), atomic=True)
    assert executor().step("s", partial(enqueue, "t.child"), atomic=True) == job_id
    assert list(Job.objects.values_list("id", flat=True)) == [job_id]


@pytest.mark.row("runs", "D30")
def test_a_callback_on_commit_runs_when_the_step_is_recorded(failpoint: FailPoint) -> None:
    told: list[Any] = []

    def body() -> None:
        transaction.on_commit(lambda: told.append(steps_of()))

    crash_at(failpoint, "step.effect_done")
    with crashes():
        executor().step("s", body, atomic=True)
    assert told == []
    executor().step("s", body, atomic=True)
    assert told == [[("s", "done", None)]]


@pytest.mark.row("runs", "D30")
def test_a_body_that_breaks_its_transaction_records_nothing() -> None:
    def swallows() -> str:
        effect()
        with pytest.raises(IntegrityError):
            effect()
        return "all is well"

    def closes() -> str:
        effect("lost")
        connections.close_all()
        return "all is well"

    def marks() -> str:
        effect("lost too")
        transaction.set_rollback(True)
        return "all is well"

    for body in (swallows, closes, marks):
        with pytest.raises((TransactionManagementError, OperationalError, Exception)):
            executor().step("s", body, atomic=True)
        assert (effects(), steps_of()) == (0, []), body
    assert executor().step("s", effect, atomic=True) == "effect"


@pytest.mark.row("runs", "D30")
def test_a_body_that_ends_the_transaction_itself_is_told_so() -> None:
    def commits() -> str:
        effect()
        transaction.commit()
        return "done"

    with pytest.raises(TransactionManagementError):
        executor().step("s", commits, atomic=True)
    assert (effects(), steps_of()) == (0, [])


@pytest.mark.row("runs", "D30")
def test_a_cancel_during_the_body_lets_it_finish_and_stops_the_next_one() -> None:
    def work(run: Any) -> None:
        run.step("first", lambda: [cancel_run("r1", "enough"), effect()][1], atomic=True)
        run.step("second", effect, "second", atomic=True)

    with pytest.raises(RunCanceled, match="enough"):
        run_durable("r1", work)
    assert (effects(), steps_of()) == (1, [("first", "done", "effect")])


def test_the_signal_is_looked_at_before_the_transaction_begins() -> None:
    signal = Revocation()
    run = executor(signal=signal)
    signal.revoke("canceled")
    with pytest.raises(RunCanceled):
        run.step("s", effect, atomic=True)
    assert (effects(), Step.objects.count()) == (0, 0)
