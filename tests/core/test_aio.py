"""The thread of the event loop: batches start in order, and it ends when they have ended."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from gnl_django.core.aio import LoopThread, cancel_from_anywhere
from tests.support import wait_until

DEADLINE = 10


@pytest.fixture
def loop() -> Iterator[Any]:
    """A loop thread, closed at the end of the test."""
    made: Any = LoopThread(lambda make: make(), name="test-loop")
    yield made
    made.close()
    wait_until(lambda: "test-loop" not in {thread.name for thread in threading.enumerate()})


def test_nothing_is_started_for_an_empty_batch(loop: Any) -> None:
    loop.submit([])
    assert "test-loop" not in {thread.name for thread in threading.enumerate()}


def test_a_batch_starts_in_order_on_one_thread(loop: Any) -> None:
    seen: list[tuple[int, str]] = []
    done = threading.Event()

    def make(number: int) -> object:
        async def work() -> None:
            seen.append((number, threading.current_thread().name))
            if number == 4:
                done.set()

        return work

    loop.submit([make(number) for number in range(5)])
    assert done.wait(DEADLINE)
    assert seen == [(number, "test-loop") for number in range(5)]


def test_closing_waits_for_what_runs_and_a_later_batch_starts_anew(loop: Any) -> None:
    inside, go_on, again = threading.Event(), threading.Event(), threading.Event()

    async def work() -> None:
        inside.set()
        while not go_on.is_set():
            await asyncio.sleep(0)

    async def more() -> None:
        again.set()

    loop.submit([work])
    assert inside.wait(DEADLINE)
    loop.close()
    loop.submit([more])
    assert again.wait(DEADLINE)
    go_on.set()


def test_closing_with_patience_ends_the_thread_and_its_connection(loop: LoopThread) -> None:
    done = threading.Event()

    async def work() -> None:
        done.set()

    loop.submit([work])
    assert done.wait(DEADLINE)
    loop.close(patience=DEADLINE)
    assert "test-loop" not in {thread.name for thread in threading.enumerate()}


def test_a_coroutine_may_close_its_own_loop(loop: LoopThread) -> None:
    done = threading.Event()

    async def work() -> None:
        loop.close(patience=DEADLINE)
        done.set()

    loop.submit([work])
    assert done.wait(DEADLINE)


def test_a_task_is_canceled_from_another_thread_and_a_closed_loop_is_no_matter(
    loop: Any,
) -> None:
    tasks: list[asyncio.Task[None]] = []
    canceled = threading.Event()

    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        try:
            await asyncio.sleep(DEADLINE * 10)
        except asyncio.CancelledError:
            canceled.set()
            raise

    loop.submit([work])
    wait_until(lambda: tasks)
    cancel_from_anywhere(tasks[0])
    assert canceled.wait(DEADLINE)
    loop.close()
    wait_until(lambda: tasks[0].get_loop().is_closed())
    cancel_from_anywhere(tasks[0])
