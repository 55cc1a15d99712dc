"""Async handlers: one event loop beside the threads; queue.md R9, R30, row C92."""

import asyncio
import threading
from typing import Any

import pytest

from gnl_django import cancel_job, enqueue
from gnl_django.models import Attempt, Job
from gnl_django.queue.context import AsyncJobContext
from tests.conformance.conftest import Declare, MakeWorker
from tests.support import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
DEADLINE = 30


def test_async_handlers_run_side_by_side_on_one_thread_and_leave_the_slots_alone(
    declare: Declare, make_worker: MakeWorker
) -> None:
    threads: set[str] = set()
    inside: list[int] = []

    async def handler(payload: int) -> int:
        threads.add(threading.current_thread().name)
        inside.append(payload)
        while len(inside) < 5:
            await asyncio.sleep(0)
        return payload * 2

    declare("async", handler)
    declare("sync", lambda payload: threading.current_thread().name)
    jobs = [enqueue("async", number) for number in range(5)]
    other = enqueue("sync")
    assert make_worker(concurrency=6).run_once() == 6
    assert threads == {"gnl-async"}
    assert [Job.objects.get(pk=job).result for job in jobs] == [0, 2, 4, 6, 8]
    assert str(Job.objects.get(pk=other).result).startswith("gnl-slot")


def test_no_more_async_handlers_run_than_the_worker_has_slots(
    declare: Declare, make_worker: MakeWorker
) -> None:
    running, most = 0, 0

    async def handler(payload: Any) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    declare("async", handler)
    for _ in range(12):
        enqueue("async")
    assert make_worker(concurrency=3).run_until_idle() == 12
    assert most == 3


def test_an_async_handler_uses_its_context_by_awaiting_it(
    declare: Declare, make_worker: MakeWorker
) -> None:
    async def handler(payload: Any, ctx: AsyncJobContext) -> int:
        await ctx.progress(1, 2, "half")
        return await ctx.enqueue("child", {"from": ctx.job_id})

    declare("async", handler)
    declare("child")
    job = enqueue("async", org="acme")
    make_worker().run_once()
    row = Job.objects.get(pk=job)
    child = Job.objects.get(pk=row.result)
    assert (child.org, child.payload) == ("acme", {"from": job})
    assert row.progress == {"done": 1, "message": "half", "total": 2}


@pytest.mark.parametrize(
    "error", [ValueError("no"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()]
)
def test_whatever_an_async_handler_raises_is_its_failure_and_the_loop_goes_on(
    declare: Declare, make_worker: MakeWorker, error: BaseException
) -> None:
    async def handler(payload: Any) -> None:
        raise error

    async def fine(payload: Any) -> None:
        await asyncio.sleep(0)

    declare("bad", handler, max_attempts=1)
    declare("good", fine)
    bad, good = enqueue("bad"), enqueue("good")
    worker = make_worker(concurrency=1)
    assert worker.run_until_idle() == 2
    assert dict(Job.objects.values_list("pk", "state")) == {bad: "dead", good: "succeeded"}
    trace = Attempt.objects.get(job=bad).traceback
    assert "in handler" in trace
    assert "run_async" not in trace


@pytest.mark.row("queue", "C92")
def test_a_timeout_cancels_the_task_at_its_await(declare: Declare, make_worker: MakeWorker) -> None:
    seen = []

    async def handler(payload: Any, ctx: AsyncJobContext) -> None:
        try:
            await asyncio.sleep(DEADLINE * 10)
        except asyncio.CancelledError:
            seen.append(ctx.signal.why)
            raise

    declare("async", handler, max_hold=0.02, max_attempts=1)
    job = enqueue("async")
    make_worker().run_once()
    assert seen == ["timeout"]
    assert Job.objects.get(pk=job).state == "dead"
    attempt = Attempt.objects.get()
    assert (attempt.outcome, attempt.error_class) == (
        "timeout",
        "gnl_django.errors.ExecutionRevoked",
    )


@pytest.mark.row("queue", "C81", "C92")
def test_a_cancel_reaches_an_async_handler_with_the_next_renewal(
    declare: Declare, make_worker: MakeWorker, quick_beats: None
) -> None:
    inside = threading.Event()

    async def handler(payload: Any) -> None:
        inside.set()
        await asyncio.sleep(DEADLINE * 10)

    declare("async", handler)
    job = enqueue("async")
    worker = make_worker()
    worker.start()
    assert inside.wait(DEADLINE)
    assert cancel_job(job)
    wait_until(lambda: Job.objects.get(pk=job).state == "canceled")
    assert Job.objects.get(pk=job).attempt == 0


def test_the_orm_works_in_an_async_handler(declare: Declare, make_worker: MakeWorker) -> None:
    async def handler(payload: Any) -> int:
        return await Job.objects.acount()

    declare("async", handler)
    job = enqueue("async")
    make_worker().run_once()
    assert Job.objects.get(pk=job).result == 1
