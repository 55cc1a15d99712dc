"""The pool: started when needed, never more threads than its size, unharmed by what it runs."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection

from gnl_django.core.pool import Pool
from tests.support import wait_until

Make = Callable[..., "Pool[Any]"]


@pytest.fixture
def make() -> Iterator[Make]:
    """Make pools and end their threads."""
    pools: list[Pool[Any]] = []
    names: set[str] = set()

    def pool(size: int, run: Callable[[Any], None], name: str = "test-slot") -> Pool[Any]:
        pools.append(Pool(size, run, name=name))
        names.add(name)
        return pools[-1]

    yield pool
    for made in pools:
        made.close()
    wait_until(lambda: not [t for t in threading.enumerate() if t.name.startswith(tuple(names))])


def slots() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("test-slot")]


def test_threads_are_started_when_work_first_needs_them(make: Make) -> None:
    done: list[int] = []
    pool = make(3, done.append)
    assert slots() == []
    pool.submit([1])
    wait_until(lambda: done == [1])
    assert len(slots()) == 1
    pool.submit([2])
    wait_until(lambda: done == [1, 2])
    assert len(slots()) <= 2


def test_there_are_never_more_threads_than_the_size(make: Make) -> None:
    go_on, lock = threading.Event(), threading.Lock()
    inside = [0, 0]

    def run(item: int) -> None:
        with lock:
            inside[0] += 1
            inside[1] = max(inside)
        assert go_on.wait(30)
        with lock:
            inside[0] -= 1

    pool = make(3, run)
    pool.submit(range(8))
    pool.nudge()
    wait_until(lambda: inside[0] == 3)
    assert len(slots()) == 3
    go_on.set()
    wait_until(lambda: not inside[0] and not pool.nudge())
    assert inside[1] == 3


def test_one_slot_runs_its_work_in_the_order_given(make: Make) -> None:
    done: list[int] = []
    pool = make(1, done.append)
    for at in range(0, 100, 10):
        pool.submit(range(at, at + 10))
    wait_until(lambda: len(done) == 100)
    assert done == list(range(100))


def test_a_nudge_wakes_a_slot_for_each_item_left(make: Make) -> None:
    barrier = threading.Barrier(6)
    pool = make(6, lambda item: barrier.wait(30) and None)
    for _ in range(20):
        pool.submit(range(6))
        pool.nudge()
        wait_until(lambda: not pool.nudge())
    assert pool.nudge() is False


def test_whatever_the_work_raises_the_slot_goes_on(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[int] = []

    def run(error: BaseException | None) -> None:
        if error is not None:
            raise error
        done.append(1)

    pool = make(1, run)
    pool.submit([ValueError(), SystemExit(1), KeyboardInterrupt(), GeneratorExit(), None])
    wait_until(lambda: done == [1])
    assert len(slots()) == 1
    assert [record.message for record in caplog.records] == [
        "A slot of test-slot failed and goes on"
    ] * 4


def test_after_a_close_the_threads_end_and_new_work_starts_new_ones(make: Make) -> None:
    done: list[int] = []
    pool = make(2, done.append)
    pool.submit([1, 2])
    wait_until(lambda: len(done) == 2)
    pool.close()
    pool.close()
    wait_until(lambda: slots() == [])
    pool.submit([3])
    wait_until(lambda: len(done) == 3)


def test_a_close_with_patience_returns_when_the_threads_have_ended(make: Make) -> None:
    pool = make(4, lambda item: None)
    pool.submit(range(4))
    wait_until(lambda: not pool.nudge())
    pool.close(patience=10)
    assert slots() == []


def test_a_slot_may_close_its_own_pool(make: Make) -> None:
    closed = threading.Event()

    def run(item: int) -> None:
        pool.close(patience=10)
        closed.set()

    pool = make(1, run)
    pool.submit([1])
    assert closed.wait(10)


def test_a_close_lets_running_work_end(make: Make) -> None:
    inside, go_on, done = threading.Event(), threading.Event(), []

    def run(item: int) -> None:
        inside.set()
        assert go_on.wait(30)
        done.append(item)

    pool = make(1, run)
    pool.submit([1])
    assert inside.wait(30)
    pool.close()
    go_on.set()
    wait_until(lambda: slots() == [])
    assert done == [1]


@pytest.mark.django_db(transaction=True)
def test_a_thread_closes_its_database_connections_at_its_end(make: Make) -> None:
    seen: list[Any] = []

    def run(item: int) -> None:
        connection.ensure_connection()
        seen.append(connection.connection)

    pool = make(1, run)
    pool.submit([1])
    wait_until(lambda: seen)
    pool.close()
    wait_until(lambda: slots() == [])
    # Had it been left open, the collector would have warned, and warnings are errors here.
    closed = getattr(seen[0], "closed", True)
    assert closed
