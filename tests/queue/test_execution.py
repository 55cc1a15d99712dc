"""One attempt: payload, context, whatever a handler raises, and a clean thread afterwards."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from threading import Event, Thread
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection, transaction
from pydantic import BaseModel

from gnl_django import ExecutionRevoked, InvalidPayload, JobContext, PermanentFailure
from gnl_django.core.leases import Lease
from gnl_django.models import Job
from gnl_django.queue.context import AsyncJobContext
from gnl_django.queue.execution import Execution, Outbox, run
from gnl_django.queue.hygiene import tidied
from gnl_django.queue.kinds import JobKind
from gnl_django.queue.store.base import ClaimedRow
from tests.conformance.conftest import Declare

KIND = "execution.work"


class Size(BaseModel):
    """A typed payload."""

    width: int


@pytest.fixture
def attempt(declare: Declare) -> Callable[..., Execution]:
    """Run a handler once and return its execution: `attempt(handler, payload, why="timeout")`."""

    def run_once(
        handler: Callable[..., Any], payload: Any = None, *, why: Any = None, **columns: Any
    ) -> Execution:
        execution = make(declare(KIND, handler), payload, **columns)
        if why:
            execution.lease.signal.revoke(why)
        run(execution, lambda row: nullcontext())
        return execution

    return run_once


def make(kind: JobKind[Any], payload: Any = None, **columns: Any) -> Execution:
    """Return an execution that has not begun."""
    values: dict[str, Any] = {
        "id": 5,
        "kind": KIND,
        "org": "",
        "queue": "default",
        "payload": None if payload is None else json.dumps(payload),
        "meta": "{}",
        "run_id": None,
        "scheduled_for": None,
        "attempt": 1,
        "max_attempts": 5,
        "priority": 0,
        **columns,
    }
    lease = Lease(5, "token", good_at=0.0)
    return Execution(ClaimedRow(**values), lease, kind, Outbox(lambda: None), "default")


Attempt = Callable[..., Execution]


def test_the_result_of_the_handler_becomes_a_success(attempt: Attempt) -> None:
    execution = attempt(lambda payload: {"twice": payload * 2}, 4)
    assert execution.outcome is not None
    assert (execution.outcome.state, execution.outcome.result) == ("succeeded", '{"twice":8}')
    assert execution.error is None


def test_the_handler_gets_its_payload_in_its_type(attempt: Attempt) -> None:
    seen: list[Any] = []

    def work(payload: Size) -> None:
        seen.append(payload)

    attempt(work, {"width": 3})
    assert seen == [Size(width=3)]


@pytest.mark.row("queue", "C99")
def test_a_payload_that_no_longer_fits_is_dead_and_the_handler_not_called(attempt: Attempt) -> None:
    called: list[Any] = []

    def work(payload: Size) -> None:
        called.append(payload)

    execution = attempt(work, {"width": "wide"})
    assert called == []
    assert execution.outcome is not None
    assert (execution.outcome.state, execution.outcome.recorded) == ("dead", "invalid")
    assert isinstance(execution.error, InvalidPayload)
    assert execution.outcome.error_class == "gnl_django.errors.InvalidPayload"


def test_the_context_tells_what_the_handler_may_know(attempt: Attempt) -> None:
    seen: list[JobContext] = []
    slot = datetime(2031, 1, 2, tzinfo=UTC)

    def work(payload: Any, ctx: JobContext) -> None:
        seen.append(ctx)

    execution = attempt(
        work, 1, org="acme", run_id="sched:9", meta='{"a":[1]}', attempt=2, scheduled_for=slot
    )
    (ctx,) = seen
    assert (ctx.job_id, ctx.run_id, ctx.kind, ctx.org) == (5, "sched:9", KIND, "acme")
    assert (ctx.queue, ctx.attempt, ctx.max_attempts) == ("default", 2, 5)
    assert (ctx.claim_token, ctx.meta, ctx.scheduled_for) == ("token", {"a": [1]}, slot)
    assert ctx.signal is execution.lease.signal


def test_a_job_without_owner_and_run_has_none_and_a_run_of_its_own(attempt: Attempt) -> None:
    seen: list[Any] = []
    attempt(lambda payload, ctx: seen.append((ctx.org, ctx.run_id)))
    assert seen == [(None, "job:5")]


def test_an_async_handler_is_awaited_with_a_context_of_coroutines(attempt: Attempt) -> None:
    seen: list[Any] = []

    async def work(payload: int, ctx: AsyncJobContext) -> int:
        seen.append((payload, type(ctx)))
        return payload + 1

    async def without(payload: int) -> int:
        return payload + 2

    first = attempt(work, 1)
    assert seen == [(1, AsyncJobContext)]
    assert first.outcome is not None
    assert first.outcome.result == "2"
    second = attempt(without, 1)
    assert second.outcome is not None
    assert second.outcome.result == "3"


@pytest.mark.row("queue", "C100")
@pytest.mark.parametrize(
    "error",
    [ValueError("x"), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), MemoryError(),
     RecursionError(), StopIteration(1), BaseException("bare")],
)  # fmt: skip
def test_whatever_a_handler_raises_is_a_failure(attempt: Attempt, error: BaseException) -> None:
    def work(payload: Any) -> None:
        raise error

    execution = attempt(work)
    assert execution.error is error
    assert execution.outcome is not None
    assert (execution.outcome.state, execution.outcome.recorded) == ("scheduled", "failed")
    # The traceback begins in the handler, not in our code.
    assert "execution.py" not in execution.outcome.traceback.replace("test_execution.py", "")
    assert "test_execution.py" in execution.outcome.traceback


def test_a_permanent_failure_is_dead_at_once(attempt: Attempt) -> None:
    def work(payload: Any) -> None:
        raise PermanentFailure("senseless")

    outcome = attempt(work).outcome
    assert outcome is not None
    assert outcome.state == "dead"


@pytest.mark.row("queue", "C64")
@pytest.mark.parametrize("fails", [True, False])
def test_nothing_is_to_be_written_once_the_lease_is_lost(attempt: Attempt, fails: bool) -> None:
    def work(payload: Any, ctx: JobContext) -> None:
        ctx.signal.revoke("lease-lost")
        if fails:
            raise ValueError("too late")

    execution = attempt(work)
    assert (execution.outcome, execution.lost) == (None, True)


def test_a_lease_lost_before_a_slot_was_free_starts_nothing(attempt: Attempt) -> None:
    called: list[int] = []
    execution = attempt(lambda payload: called.append(1), why="lease-lost")
    assert (called, execution.outcome) == ([], None)


@pytest.mark.row("queue", "C87")
@pytest.mark.parametrize("ending", ["returns", "raises", "obeys"])
def test_after_a_timeout_the_attempt_has_failed_however_it_ended(
    attempt: Attempt, ending: str
) -> None:
    def work(payload: Any, ctx: JobContext) -> str:
        ctx.signal.revoke("timeout")
        if ending == "raises":
            raise ValueError("something else")
        if ending == "obeys":
            ctx.signal.raise_if_revoked()
        return "ready in time"

    execution = attempt(work)
    assert isinstance(execution.error, ExecutionRevoked)
    assert execution.outcome is not None
    assert execution.outcome.recorded == "timeout"
    assert execution.outcome.error_class == "gnl_django.errors.ExecutionRevoked"
    assert execution.outcome.result is None


@pytest.mark.row("queue", "C81")
@pytest.mark.parametrize("fails", [True, False])
def test_after_a_cancel_the_attempt_is_canceled_and_given_back(
    attempt: Attempt, fails: bool
) -> None:
    def work(payload: Any, ctx: JobContext) -> str:
        ctx.signal.revoke("canceled")
        if fails:
            raise ValueError("in the middle")
        return "done anyway"

    outcome = attempt(work).outcome
    assert outcome is not None
    assert (outcome.state, outcome.refund, outcome.recorded) == ("canceled", True, "canceled")
    assert outcome.result is None


def test_a_context_gives_no_work_after_a_revocation(attempt: Attempt) -> None:
    def work(payload: Any, ctx: JobContext) -> None:
        ctx.signal.revoke("timeout")
        ctx.enqueue(KIND)

    execution = attempt(work)
    assert isinstance(execution.error, ExecutionRevoked)


@pytest.mark.row("queue", "C34")
@pytest.mark.django_db
def test_work_given_by_a_handler_belongs_to_its_organization(attempt: Attempt) -> None:
    def work(payload: Any, ctx: JobContext) -> None:
        ctx.enqueue(KIND, 1)
        ctx.enqueue(KIND, 2, org="other")

    async def work_async(payload: Any, ctx: AsyncJobContext) -> None:
        await ctx.enqueue(KIND, 3, priority=7)

    attempt(work, org="acme")
    attempt(work_async, org="acme")
    rows = Job.objects.order_by("id").values_list("payload", "org", "priority")
    assert list(rows) == [(1, "acme", 0), (2, "other", 0), (3, "acme", 7)]


# the outbox


def test_an_outbox_counts_and_hands_over_what_was_put_and_wakes_its_owner(
    declare: Declare,
) -> None:
    wakes: list[int] = []
    outbox = Outbox(lambda: wakes.append(1))
    one, two = (make(declare(KIND)) for _ in range(2))
    assert outbox.gather(1, 0) == 0
    outbox.put(one)
    outbox.put(two)
    assert (outbox.gather(1, 0), wakes) == (2, [1, 1])
    assert outbox.take() == [one, two]
    assert outbox.take() == []


def test_a_wait_ends_when_as_many_have_ended_as_were_expected(declare: Declare) -> None:
    outbox, waiting, counts = Outbox(lambda: None), Event(), []

    def wait() -> None:
        waiting.set()
        counts.append(outbox.gather(2, 30))

    thread = Thread(target=wait)
    thread.start()
    assert waiting.wait(30)
    kind = declare(KIND)
    outbox.put(make(kind))
    outbox.put(make(kind))
    thread.join(30)
    assert counts == [2]


# the thread's connections


@pytest.fixture
def in_slot(transactional_db: None, declare: Declare) -> Callable[..., list[Execution]]:
    """Run handlers one after another in one slot's thread, which ends with clean connections."""

    def run_in_thread(*handlers: Callable[..., Any]) -> list[Execution]:
        made = [make(declare(f"{KIND}.{at}", h)) for at, h in enumerate(handlers)]

        def slot() -> None:
            try:
                for execution in made:
                    run(execution, tidied)
            finally:
                connection.close()

        thread = Thread(target=slot)
        thread.start()
        thread.join(30)
        assert not thread.is_alive()
        return made

    return run_in_thread


Slot = Callable[..., list[Execution]]


@pytest.mark.row("queue", "C107")
@pytest.mark.parametrize("how", ["atomic", "autocommit"])
def test_a_transaction_left_open_is_rolled_back_and_logged(
    in_slot: Slot, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    seen: list[Any] = []

    def leaves_open(payload: Any) -> None:
        if how == "atomic":
            transaction.atomic().__enter__()
        else:
            transaction.set_autocommit(False)
        Group.objects.create(name="never committed")

    def next_one(payload: Any) -> None:
        seen.append((connection.in_atomic_block, connection.get_autocommit()))
        Group.objects.create(name="committed")

    first, second = in_slot(leaves_open, next_one)
    assert first.outcome is not None
    assert first.outcome.state == "succeeded"
    assert second.error is None
    assert seen == [(False, True)]
    assert list(Group.objects.values_list("name", flat=True)) == ["committed"]
    assert "left a transaction open on 'default' (job 5)" in caplog.text


def test_a_connection_that_broke_is_replaced_before_the_next_handler(in_slot: Slot) -> None:
    def breaks(payload: Any) -> None:
        Group.objects.count()
        assert connection.connection is not None
        connection.connection.close()
        Group.objects.count()

    first, second = in_slot(breaks, lambda payload: Group.objects.count())
    assert first.error is not None
    assert second.error is None


@pytest.mark.row("queue", "C108")
def test_the_log_of_queries_does_not_grow(in_slot: Slot, settings: Any) -> None:
    settings.DEBUG = True
    sizes: list[int] = []

    def work(payload: Any) -> None:
        sizes.append(len(connection.queries_log))
        Group.objects.count()

    in_slot(*[work] * 5)
    assert sizes == [0] * 5


def test_a_handler_without_a_connection_opens_none(in_slot: Slot) -> None:
    seen: list[Any] = []
    in_slot(*[lambda payload: seen.append(connection.connection)] * 2)
    assert seen == [None, None]
