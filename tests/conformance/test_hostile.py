"""Handlers and callbacks that do their worst: their own job suffers, nobody else's does.

queue.md R12, R35-R37, R40, 3.7; each was once a way to stop or cheat a worker.
"""

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection

from gnl_django import JobContext, enqueue, enqueue_many
from gnl_django.models import Attempt, Job, QueueState
from gnl_django.signals import job_finished
from tests.conformance.conftest import Declare, MakeWorker
from tests.support import vendor, wait_until

pytestmark = pytest.mark.django_db(transaction=True)
DEADLINE = 15


@pytest.fixture
def lasting() -> Iterator[None]:
    """Let connections outlive a job, as most projects do."""
    before = connection.settings_dict["CONN_MAX_AGE"]
    connection.settings_dict["CONN_MAX_AGE"] = None
    yield
    connection.settings_dict["CONN_MAX_AGE"] = before


def write(queue: str) -> None:
    """Leave a row behind, as a handler does."""
    QueueState.objects.create(queue=queue, changed_at="2031-01-01T00:00:00Z")


def states() -> dict[int, str]:
    return dict(Job.objects.values_list("pk", "state"))


@pytest.mark.row("queue", "C107")
def test_a_transaction_that_a_handler_began_by_hand_takes_no_other_jobs_writes_with_it(
    declare: Declare, make_worker: MakeWorker, lasting: None
) -> None:
    begin = {"sqlite": "BEGIN IMMEDIATE", "mysql": "START TRANSACTION", "postgresql": "BEGIN"}

    def leave_open(payload: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(begin[vendor()])

    declare("bad", leave_open)
    declare("good", lambda payload: write("innocent"))
    bad, good = enqueue("bad"), enqueue("good")
    worker = make_worker(concurrency=1)
    worker.run_until_idle()
    assert states() == {bad: "succeeded", good: "succeeded"}
    assert worker.stop(DEADLINE)
    assert QueueState.objects.filter(queue="innocent").exists()


@pytest.mark.row("queue", "C107")
def test_a_transaction_that_an_async_handler_left_open_takes_no_later_jobs_writes_with_it(
    declare: Declare, make_worker: MakeWorker, lasting: None
) -> None:
    from asgiref.sync import sync_to_async

    def begin() -> None:
        connection.set_autocommit(False)
        write("lost")

    async def leave_open(payload: Any) -> None:
        await sync_to_async(begin)()

    async def innocent(payload: Any) -> None:
        await sync_to_async(write)("innocent")

    declare("bad", leave_open)
    declare("good", innocent)
    bad = enqueue("bad")
    worker = make_worker(concurrency=1)
    worker.run_once()
    good = enqueue("good")
    worker.run_once()
    assert states() == {bad: "succeeded", good: "succeeded"}
    assert set(QueueState.objects.values_list("queue", flat=True)) == {"innocent"}


@pytest.mark.row("queue", "C100")
@pytest.mark.parametrize("how", ["a subtask exits", "the loop is stopped"])
def test_an_async_handler_cannot_end_the_loop_of_the_others(
    declare: Declare, make_worker: MakeWorker, how: str
) -> None:
    async def leave() -> None:
        sys.exit(3)

    async def bad(payload: Any) -> None:
        if how == "a subtask exits":
            await asyncio.gather(leave())
        else:
            asyncio.get_running_loop().stop()

    async def fine(payload: Any) -> None:
        await asyncio.sleep(0)

    declare("bad", bad, max_attempts=1)
    declare("good", fine)
    enqueue("bad")
    worker = make_worker(concurrency=2)
    worker.start()
    wait_until(lambda: not worker.metrics().active and worker.metrics().runs == 1)
    good = enqueue("good")
    wait_until(lambda: states()[good] == "succeeded")
    assert worker.stop(DEADLINE)


class Exits(Exception):
    """Ends the process of whoever reads it."""

    def __str__(self) -> str:
        sys.exit(3)


class OddFormat(str):
    def __format__(self, spec: str) -> str:
        raise ValueError("no")


class Unreadable(Exception):
    def __str__(self) -> str:
        return OddFormat("text")


class OddResult(dict[str, Any]):
    def items(self) -> Any:
        raise KeyboardInterrupt


def raises(error: BaseException) -> Any:
    def handler(payload: Any) -> None:
        raise error

    return handler


def named(name: str) -> BaseException:
    made: BaseException = type("X", (Exception,), {"__module__": "m"})("text")
    type(made).__qualname__ = name
    return made


def exit_in_delay(attempt: int, error: BaseException) -> float:
    sys.exit(3)


@pytest.mark.row("queue", "C101")
@pytest.mark.parametrize(
    ("handler", "options"),
    [
        pytest.param(raises(Exits()), {}, id="text that exits"),
        pytest.param(raises(Unreadable()), {}, id="text that cannot be formatted"),
        pytest.param(raises(named("nul\x00")), {}, id="NUL in the class"),
        pytest.param(raises(named("\ud800")), {}, id="surrogate in the class"),
        pytest.param(lambda payload: OddResult(a=1), {}, id="result that interrupts"),
        pytest.param(raises(ValueError("no")), {"retry_delay": exit_in_delay}, id="delay exits"),
    ],
)
def test_whatever_an_end_is_made_of_it_is_written(
    declare: Declare, make_worker: MakeWorker, handler: Any, options: dict[str, Any]
) -> None:
    declare("bad", handler, max_attempts=2, **options)
    declare("good")
    bad, good = enqueue("bad"), enqueue("good")
    worker = make_worker()
    assert worker.run_once() == 2
    assert states()[good] == "succeeded"
    assert states()[bad] in {"scheduled", "succeeded"}
    if states()[bad] == "scheduled":
        assert Attempt.objects.get(job=bad).outcome == "failed"
    assert worker.metrics().active == 0


def test_a_result_whose_parts_are_shared_is_not_walked_for_ever(
    declare: Declare, make_worker: MakeWorker
) -> None:
    value: Any = [1]
    for _ in range(30):
        value = [value, value]
    declare("dag", lambda payload: value)
    job = enqueue("dag")
    make_worker().run_once()
    row = Job.objects.get(pk=job)
    assert (row.state, row.result) == ("succeeded", None)
    assert row.note.startswith("result not stored: ")


@pytest.mark.row("queue", "C93")
def test_a_callback_that_exits_ends_no_thread_of_ours(
    declare: Declare, make_worker: MakeWorker
) -> None:
    def handler(payload: Any, ctx: JobContext) -> None:
        ctx.signal.on_revoke(lambda: sys.exit(3))
        assert ctx.signal.wait(DEADLINE)

    declare("bad", handler, max_hold=0.05, max_attempts=1)
    enqueue("bad")
    worker = make_worker()
    worker.start()
    wait_until(lambda: set(states().values()) == {"dead"})
    assert all(thread.is_alive() for thread in worker._heartbeat._threads)


@pytest.mark.row("queue", "C149")
@pytest.mark.parametrize("who", ["on_error", "receiver"])
def test_on_error_or_a_receiver_that_exits_does_not_end_the_control_thread(
    declare: Declare, make_worker: MakeWorker, who: str
) -> None:
    def leave(*args: Any, **kwargs: Any) -> None:
        sys.exit(3)

    declare("bad", raises(ValueError("no")), max_attempts=1)
    declare("good")
    bad = enqueue("bad")
    if who == "receiver":
        job_finished.connect(leave)
    try:
        worker = make_worker(on_error=leave if who == "on_error" else None)
        worker.start()
        wait_until(lambda: states()[bad] == "dead")
        good = enqueue("good")
        wait_until(lambda: states()[good] == "succeeded")
    finally:
        job_finished.disconnect(leave)


def test_a_driver_connection_that_a_handler_closes_is_no_failure(
    declare: Declare, make_worker: MakeWorker, lasting: None
) -> None:
    def close(payload: Any) -> None:
        connection.ensure_connection()
        raw: Any = connection.connection
        raw.close()

    declare("bad", close, max_attempts=1)
    declare("good", lambda payload: write("innocent"))
    bad, good = enqueue("bad"), enqueue("good")
    make_worker(concurrency=1).run_until_idle()
    assert states() == {bad: "succeeded", good: "succeeded"}


def test_many_large_payloads_fit_any_server(declare: Declare) -> None:
    large = declare("large")
    ids = large.enqueue_many(["x" * 1_000_000] * 20)
    assert len(set(ids)) == 20
    assert enqueue_many([]) == []
