"""Revocation: a canceled job ends as canceled, whatever its handler does and whoever holds it."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from gnl_django import JobContext, JobKind, cancel_job
from gnl_django.core import clock
from gnl_django.core.db import now
from gnl_django.errors import ExecutionRevoked
from gnl_django.models import Job
from tests.conformance.conftest import Declare, FailPoint, MakeWorker
from tests.conformance.helpers import (
    DEADLINE,
    attempts_of,
    columns_of,
    fail,
    job_of,
    outcomes_of,
    running,
    state_of,
)
from tests.support import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.row("queue", "C80")
@pytest.mark.parametrize("delay", [None, 60], ids=["ready", "scheduled"])
def test_a_waiting_job_is_canceled_at_once_and_only_once(
    kind: JobKind[Any], make_worker: MakeWorker, delay: int | None
) -> None:
    job_id = kind.enqueue("x", delay=delay, org="acme")
    assert cancel_job(job_id, "wrong customer") is True
    job = job_of(job_id)
    assert (job.state, job.cancel_reason, job.attempt) == ("canceled", "wrong customer", 0)
    assert job.finished_at is not None
    before = columns_of(job_id)
    assert cancel_job(job_id, "again") is False
    assert columns_of(job_id) == before
    assert make_worker().run_once() == 0
    assert attempts_of(job_id) == []


def returns(ctx: JobContext) -> str:
    return "done"


def raises(ctx: JobContext) -> str:
    raise ValueError("no")


def gives_in(ctx: JobContext) -> str:
    ctx.signal.raise_if_revoked()
    return "not canceled"


ENDINGS = [returns, raises, gives_in]


@pytest.mark.row("queue", "C81", "C84")
@pytest.mark.usefixtures("quick_beats")
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_running_jobs_handler_learns_of_the_cancellation_with_the_next_renewal(
    declare: Declare,
    make_worker: MakeWorker,
    failpoint: FailPoint,
    ending: Callable[[JobContext], str],
) -> None:
    started = threading.Event()
    held: list[JobContext] = []
    late: list[int] = []

    def handle(payload: Any, ctx: JobContext) -> str:
        held.append(ctx)
        started.set()
        assert ctx.signal.wait(DEADLINE)
        return ending(ctx)

    def renewal() -> None:
        if job_of(job_id).cancel_requested_at and not held[0].signal.revoked:
            late.append(1)

    told: list[object] = []
    job_id = declare("t.slow", handle, max_attempts=1).enqueue()
    worker = make_worker(on_error=lambda *args: told.append(args))
    failpoint("renew.begin", renewal)
    worker.start()
    assert started.wait(DEADLINE)
    assert cancel_job(job_id, "first") is True
    assert cancel_job(job_id, "second") is True
    wait_until(lambda: state_of(job_id) == "canceled")
    assert held[0].signal.why == "canceled"
    assert len(late) <= 1  # the first renewal after the request; they follow at a third of the ttl
    expect_canceled(job_id, "first")
    wait_until(lambda: worker.metrics().canceled == 1)
    assert told == []
    metrics = worker.metrics()
    assert (metrics.runs, metrics.completed, metrics.failed, metrics.retried) == (1, 0, 0, 0)


def expect_canceled(job_id: int, reason: str) -> None:
    job = job_of(job_id)
    assert (job.state, job.attempt, job.cancel_reason) == ("canceled", 0, reason)
    assert (job.result, job.note, job.error_class, job.error) == (None, "", "", "")
    assert (job.claim_token, job.lease_expires_at) == (None, None)
    assert job.cancel_requested_at is not None
    assert job.finished_at is not None
    (attempt,) = attempts_of(job_id)
    assert (attempt.outcome, attempt.number) == ("canceled", 1)
    assert (attempt.error_class, attempt.message, attempt.traceback) == ("", "", "")


@pytest.mark.row("queue", "C81", "C83")
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_handler_that_ends_before_it_could_learn_is_canceled_all_the_same(
    declare: Declare, make_worker: MakeWorker, ending: Callable[[JobContext], str]
) -> None:
    def handle(payload: Any, ctx: JobContext) -> str:
        assert cancel_job(ctx.job_id, "from within")
        return ending(ctx)

    told: list[object] = []
    job_id = declare("t.hasty", handle, max_attempts=3).enqueue()
    assert make_worker(on_error=lambda *args: told.append(args)).run_once() == 1
    expect_canceled(job_id, "from within")
    assert told == []


@pytest.mark.row("queue", "C83")
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("point", ["handler.returned", "{outcome}.begin"])
def test_a_cancellation_between_return_and_settle_counts(
    declare: Declare,
    make_worker: MakeWorker,
    failpoint: FailPoint,
    ending: Callable[[JobContext], str],
    point: str,
) -> None:
    job_id = declare("t.slow", lambda payload, ctx: ending(ctx), max_attempts=3).enqueue()
    outcome = "retry" if ending is raises else "complete"
    failpoint(point.format(outcome=outcome), lambda: cancel_job(job_id, "late"))
    assert make_worker().run_once() == 1
    expect_canceled(job_id, "late")


@pytest.mark.row("queue", "C83")
def test_a_cancellation_after_the_settle_comes_too_late(
    kind: JobKind[Any], make_worker: MakeWorker, failpoint: FailPoint
) -> None:
    answers: list[bool] = []
    job_id = kind.enqueue()
    failpoint("complete.committed", lambda: answers.append(cancel_job(job_id)))
    make_worker().run_once()
    assert answers == [False]
    assert state_of(job_id) == "succeeded"


@pytest.mark.row("queue", "C82")
def test_a_job_whose_holder_died_after_the_cancellation_is_reaped_to_canceled(
    kind: JobKind[Any], make_worker: MakeWorker
) -> None:
    job_id = kind.enqueue()
    running(job_id, lease=timedelta(hours=1))
    assert cancel_job(job_id, "too late") is True
    assert state_of(job_id) == "running"
    worker = make_worker()
    assert worker.run_once() == 0
    assert state_of(job_id) == "running"
    with clock.override(now("default") + timedelta(hours=2)) as later:
        assert worker.run_once() == 0
        job = job_of(job_id)
        assert (job.state, job.cancel_reason) == ("canceled", "too late")
        assert job.finished_at is not None
        assert (job.claim_token, job.lease_expires_at) == (None, None)
        assert outcomes_of(job_id) == ["lease_lost"]
        later.advance(timedelta(hours=1))
        assert worker.run_once() == 0
    assert worker.metrics().reaped == 1
    assert cancel_job(job_id) is False


@pytest.mark.row("queue", "C84")
def test_the_first_reason_is_kept_and_its_time_too(kind: JobKind[Any]) -> None:
    job_id = kind.enqueue()
    running(job_id)
    assert cancel_job(job_id, "first") is True
    before = columns_of(job_id)
    assert before["cancel_reason"] == "first"
    assert cancel_job(job_id, "second") is True
    assert cancel_job(job_id) is True
    assert columns_of(job_id) == before


@pytest.mark.row("queue", "C84")
def test_no_reason_is_a_reason_too(kind: JobKind[Any]) -> None:
    job_id = kind.enqueue()
    running(job_id)
    assert cancel_job(job_id) is True
    assert cancel_job(job_id, "second") is True
    assert job_of(job_id).cancel_reason == ""


def test_a_long_reason_is_cut_to_its_column(kind: JobKind[Any]) -> None:
    job_id = kind.enqueue()
    assert cancel_job(job_id, "ü" * 501)
    assert job_of(job_id).cancel_reason == "ü" * 500


def test_a_reason_is_cleaned_of_what_not_every_database_takes(kind: JobKind[Any]) -> None:
    job_id = kind.enqueue()
    assert cancel_job(job_id, "a\0b\ud800c")
    assert job_of(job_id).cancel_reason == "a\ufffdb?c"


@pytest.mark.row("queue", "C85")
def test_a_final_job_is_not_canceled(declare: Declare, make_worker: MakeWorker) -> None:
    good, bad = declare("t.plain"), declare("t.fails", fail, max_attempts=1)
    ids = [good.enqueue(), bad.enqueue()]
    make_worker().run_until_idle()
    before = [columns_of(job_id) for job_id in ids]
    assert [row["state"] for row in before] == ["succeeded", "dead"]
    assert [cancel_job(job_id, "late") for job_id in ids] == [False, False]
    assert [columns_of(job_id) for job_id in ids] == before


@pytest.mark.row("queue", "C85")
@pytest.mark.parametrize("job_id", [2**62, 2**63, 2**64, 0, -1])
def test_an_unknown_job_is_not_canceled(job_id: int) -> None:
    assert cancel_job(job_id) is False
    assert not Job.objects.exists()


@pytest.mark.row("queue", "C80")
def test_a_failed_job_that_waits_for_its_retry_can_be_canceled(
    declare: Declare, make_worker: MakeWorker
) -> None:
    job_id = declare("t.fails", fail).enqueue()
    make_worker().run_once()
    assert state_of(job_id) == "scheduled"
    assert cancel_job(job_id) is True
    job = job_of(job_id)
    assert (job.state, job.attempt) == ("canceled", 1)  # that attempt was spent
    assert outcomes_of(job_id) == ["failed"]


def test_the_signal_of_a_job_that_goes_on_is_silent(
    declare: Declare, make_worker: MakeWorker
) -> None:
    seen = []

    def handle(payload: Any, ctx: JobContext) -> None:
        seen.append((ctx.signal.revoked, ctx.signal.why, ctx.signal.wait(0)))
        ctx.signal.raise_if_revoked()

    job_id = declare("t.quick", handle).enqueue()
    make_worker().run_once()
    assert seen == [(False, None, False)]
    assert state_of(job_id) == "succeeded"


def test_a_handler_that_raises_the_revocation_by_itself_has_failed(
    declare: Declare, make_worker: MakeWorker
) -> None:
    def handle(payload: Any) -> None:
        raise ExecutionRevoked("canceled")

    job_id = declare("t.lies", handle, max_attempts=1).enqueue()
    make_worker().run_once()
    assert state_of(job_id) == "dead"
    assert outcomes_of(job_id) == ["failed"]
