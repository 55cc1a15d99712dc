"""The ledger: room is reserved before a claim, and every job is counted in one place (R18)."""

import threading
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gnl_django.core import clock
from gnl_django.queue.metrics import COUNTERS, Ledger

ENDS = ("completed", "failed", "retried", "canceled", "lost", "released", "deferred")


def test_a_fresh_ledger_has_all_its_room() -> None:
    ledger = Ledger(3)
    metrics = ledger.snapshot()
    assert (metrics.capacity, metrics.active, metrics.claiming) == (3, 0, 0)
    assert all(getattr(metrics, name) == 0 for name in COUNTERS)
    assert ledger.free == 3
    assert ledger.wait_idle(0)


def test_a_reservation_becomes_running_jobs_in_one_step() -> None:
    ledger = Ledger(5)
    assert ledger.reserve(3) == 3
    assert ledger.reserve(100) == 2
    assert ledger.reserve(1) == 0
    ledger.taken(3, 2)
    metrics = ledger.snapshot()
    assert (metrics.active, metrics.claiming, metrics.runs) == (2, 2, 2)
    assert ledger.free == 1


def test_a_draining_ledger_gives_no_room() -> None:
    ledger = Ledger(5)
    ledger.draining = True
    assert ledger.reserve(1) == 0
    assert ledger.snapshot().draining is True


def test_a_slot_is_free_when_its_handler_returns_and_idle_when_the_job_is_settled() -> None:
    ledger = Ledger(1)
    ledger.taken(ledger.reserve(1), 1)
    assert not ledger.wait_returned(0)
    ledger.ended()
    assert ledger.wait_returned(0)
    assert (ledger.active, ledger.free) == (0, 1)
    assert not ledger.wait_idle(0)
    ledger.left("failed", "dead_lettered")
    assert ledger.wait_idle(0)
    metrics = ledger.snapshot()
    assert (metrics.failed, metrics.dead_lettered, metrics.runs) == (1, 1, 1)


def test_a_reservation_alone_is_not_idle() -> None:
    ledger = Ledger(1)
    ledger.reserve(1)
    assert not ledger.wait_idle(0)
    ledger.taken(1, 0)
    assert ledger.wait_idle(0)


def test_a_waiter_is_told_when_the_last_job_leaves() -> None:
    ledger = Ledger(1)
    ledger.taken(ledger.reserve(1), 1)
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(ledger.wait_idle(30)))
    thread.start()
    ledger.ended()
    ledger.left("completed")
    thread.join(30)
    assert answers == [True]


def test_passes_and_other_counts_add_up() -> None:
    ledger = Ledger(1)
    at = clock.wall()
    ledger.ticked(at)
    ledger.count("reaped", 4)
    ledger.count("reaped")
    metrics = ledger.snapshot()
    assert (metrics.polls, metrics.last_tick_at, metrics.reaped) == (1, at, 5)


@given(
    capacity=st.integers(1, 6),
    acts=st.lists(
        st.tuples(st.sampled_from(["reserve", "taken", "ended", "left"]), st.integers(0, 9))
    ),
)
def test_jobs_and_reservations_never_exceed_the_capacity(
    capacity: int, acts: list[tuple[str, int]]
) -> None:
    ledger = Ledger(capacity)
    reserved: list[int] = []
    returned = 0
    for act, number in acts:
        if act == "reserve":
            reserved.append(ledger.reserve(number))
        elif act == "taken" and reserved:
            room = reserved.pop()
            ledger.taken(room, min(room, number))
        elif act == "ended" and ledger.active:
            ledger.ended()
            returned += 1
        elif act == "left" and returned:
            ledger.left(ENDS[number % len(ENDS)])
            returned -= 1
        metrics: Any = ledger.snapshot()
        assert 0 <= metrics.active + metrics.claiming <= capacity
        assert ledger.free == capacity - metrics.active - metrics.claiming
        ended = sum(getattr(metrics, name) for name in ENDS)
        assert metrics.runs == ended + metrics.active + returned
