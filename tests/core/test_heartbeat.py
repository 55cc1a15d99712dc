"""The heartbeat renews, counts failures, watches the holder's own clock, and never dies."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any

import pytest

from gnl_django.core import heartbeat
from gnl_django.core.heartbeat import Heartbeat, Verdict
from gnl_django.core.leases import Lease
from tests.support import wait_until

Answer = Callable[[Sequence[Lease]], Sequence[tuple[Lease, Verdict]]]

pytestmark = pytest.mark.django_db


def lease(number: int = 1, *, age: float = 0.0) -> Lease:
    """Return a lease whose claim was sent `age` seconds ago."""
    return Lease(number, f"token-{number}", good_at=monotonic() - age)


class Renewals:
    """Answers renewals as a script says: a Verdict for all, or an exception to raise."""

    def __init__(self, *script: Verdict | Exception) -> None:
        self.script = list(script)
        self.asked: list[list[int]] = []
        self.at: list[float] = []

    def __call__(self, leases: Sequence[Lease]) -> list[tuple[Lease, Verdict]]:
        self.at.append(monotonic())
        self.asked.append([held.id for held in leases])
        answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(answer, Exception):
            raise answer
        return [(held, answer) for held in leases]


def heart(renew: Answer, ttl: float = 30.0) -> Heartbeat:
    return Heartbeat(renew, ttl=ttl, using="default", name="test-heartbeat")


@contextmanager
def beating(renew: Answer, ttl: float) -> Iterator[Heartbeat]:
    """Run a heartbeat's thread and end it."""
    made = heart(renew, ttl)
    made.start()
    try:
        yield made
    finally:
        made.stop()


# one beat


def test_a_beat_without_leases_asks_nobody() -> None:
    renewals = Renewals(Verdict.RENEWED)
    heart(renewals).beat()
    assert renewals.asked == []


def test_one_beat_renews_everything_in_the_order_of_ids() -> None:
    renewals = Renewals(Verdict.RENEWED)
    made = heart(renewals)
    leases = [lease(number, age=9.0) for number in (3, 1, 2)]
    made.hold(leases)
    before = monotonic()
    made.beat()
    assert renewals.asked == [[1, 2, 3]]
    assert all(held.good_at >= before for held in leases)
    made.drop(leases[:2])
    made.beat()
    assert renewals.asked[1:] == [[2]]


def test_the_same_row_claimed_again_is_another_lease() -> None:
    made = heart(Renewals(Verdict.RENEWED))
    old, new = Lease(1, "old", good_at=0.0), Lease(1, "new", good_at=0.0)
    made.hold([old, new])
    made.drop([old])
    assert made.held() == [new]


@pytest.mark.row("queue", "C64")
def test_a_row_that_is_gone_loses_its_lease_at_once() -> None:
    made, held = heart(Renewals(Verdict.GONE)), lease()
    made.hold([held])
    made.beat()
    assert held.signal.why == "lease-lost"
    assert made.held() == []


@pytest.mark.row("queue", "C81")
def test_a_cancel_is_passed_on_and_the_lease_renewed_until_the_handler_returns() -> None:
    made, held = heart(Renewals(Verdict.CANCELED)), lease(age=5.0)
    made.hold([held])
    before = monotonic()
    made.beat()
    assert held.signal.why == "canceled"
    assert held.good_at >= before
    assert made.held() == [held]


@pytest.mark.row("queue", "C63")
def test_three_failures_in_a_row_lose_the_lease_and_a_success_starts_anew() -> None:
    down = RuntimeError("down")
    made = heart(Renewals(down, down, Verdict.RENEWED, down, down, down))
    held = lease()
    made.hold([held])
    for failures in (1, 2, 0, 1, 2):
        made.beat()
        assert (held.failures, held.signal.revoked) == (failures, False)
    made.beat()
    assert held.signal.why == "lease-lost"


@pytest.mark.row("queue", "C109")
def test_a_locked_row_is_neither_renewed_nor_a_failure() -> None:
    made, held = heart(Renewals(Verdict.LOCKED)), lease(age=5.0)
    good_at = held.good_at
    made.hold([held])
    made.beat()
    assert (held.failures, held.good_at, held.signal.revoked) == (0, good_at, False)
    assert made.held() == [held]


# the thread


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a heartbeat of 30 s renew every 0.1 s: no machine is so slow that it loses a lease."""
    monkeypatch.setattr(heartbeat, "RENEWALS_PER_TTL", 300)


@pytest.mark.row("queue", "C60")
def test_the_thread_renews_each_third_of_the_ttl() -> None:
    moments: list[float] = []

    def renew(leases: Sequence[Lease]) -> list[tuple[Lease, Verdict]]:
        moments.append(monotonic())
        return []

    began = monotonic()
    with beating(renew, ttl=0.6) as made:
        made.hold([lease(age=-600.0)])  # one that no slow machine loses
        wait_until(lambda: len(moments) >= 4)
    for number, moment in enumerate(moments[:4], 1):
        assert moment >= began + number * 0.2


def test_the_next_beat_is_a_third_of_the_ttl_after_the_last() -> None:
    made = heart(Renewals(Verdict.RENEWED), ttl=30.0)
    before = monotonic()
    made.beat()
    assert before + 10 <= made._next_beat <= monotonic() + 10


@pytest.mark.row("queue", "C109")
def test_a_locked_row_is_asked_for_again_soon() -> None:
    renewals = Renewals(Verdict.LOCKED, Verdict.LOCKED, Verdict.RENEWED)
    made = heart(renewals, ttl=30.0)
    made.hold([lease()])
    began = monotonic()
    made.beat()
    # A tenth of the ttl, at most a second; not the ten seconds of a beat.
    assert began + 1 <= made._next_beat <= monotonic() + 1
    made.beat()
    made.beat()
    assert made._next_beat - began > 9


@pytest.mark.row("queue", "C62")
def test_two_failures_are_followed_by_a_third_try_before_the_lease_is_given_up() -> None:
    down = RuntimeError("down")
    made = heart(Renewals(down, down, Verdict.RENEWED), ttl=30.0)
    held = lease(age=25.0)
    made.hold([held])
    made.beat()
    assert made._next_beat > held.gives_up_at(30.0)
    made.beat()
    assert made._next_beat < held.gives_up_at(30.0)
    made.beat()
    assert (held.failures, held.signal.revoked) == (0, False)


@pytest.mark.row("queue", "C109")
def test_a_row_locked_for_too_long_is_given_up_by_the_holders_own_clock() -> None:
    with beating(Renewals(Verdict.LOCKED), ttl=0.4) as made:
        held = lease()
        made.hold([held])
        assert held.signal.wait(30)
        told_at = monotonic()
    assert held.signal.why == "lease-lost"
    assert held.good_at + 0.36 <= told_at


@pytest.mark.row("queue", "C63")
def test_a_holder_is_told_in_time_though_a_renewal_hangs() -> None:
    """queue.md R26: the margin makes the holder stop before anybody else may start."""
    answer = threading.Event()

    def hang(leases: Sequence[Lease]) -> list[tuple[Lease, Verdict]]:
        answer.wait(60)
        return [(held, Verdict.RENEWED) for held in leases]

    made = heart(hang, ttl=0.6)
    made.start()
    try:
        held = lease()
        made.hold([held])
        told = held.signal.wait(30)
    finally:
        answer.set()
        made.stop()
    assert told
    assert held.signal.why == "lease-lost"


@pytest.mark.row("queue", "C86")
def test_a_time_limit_revokes_and_the_lease_lives_on(quick: None) -> None:
    renewals = Renewals(Verdict.RENEWED)
    with beating(renewals, ttl=30.0) as made:
        held = lease()
        made.hold([held])
        made.time_limit(held, None)
        made.time_limit(held, 0.02)
        assert held.signal.wait(30)
        asked = len(renewals.asked)
        wait_until(lambda: len(renewals.asked) > asked + 2)
        assert made.held() == [held]
    assert held.signal.why == "timeout"


def test_a_limit_beyond_the_next_look_does_not_wake_the_thread() -> None:
    made = heart(Renewals(Verdict.RENEWED))
    made._next_look = monotonic() + 1
    held = lease()
    made.time_limit(held, 60)
    assert not made._poke.is_set()
    made.time_limit(held, 0.5)
    assert made._poke.is_set()


def test_a_lease_that_was_settled_meanwhile_is_not_lost() -> None:
    made, held = heart(Renewals(Verdict.GONE)), lease()

    def settle_first(leases: Sequence[Lease]) -> list[tuple[Lease, Verdict]]:
        made.drop(leases)
        return [(one, Verdict.GONE) for one in leases]

    made._renew = settle_first
    made.hold([held])
    made.beat()
    assert not held.signal.revoked


def test_an_error_of_its_own_does_not_end_the_thread(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    renewals = Renewals(Verdict.RENEWED)
    with beating(renewals, ttl=30.0) as made:
        look: Any = made._look_at_clocks
        beat: Any = made.beat

        def broken(work: Any) -> Any:
            failures = iter([True, True])

            def fail_twice() -> None:
                if next(failures, False):
                    raise RuntimeError("a fault of ours")
                work()

            return fail_twice

        monkeypatch.setattr(made, "_look_at_clocks", broken(look))
        monkeypatch.setattr(made, "beat", broken(beat))
        made.hold([lease()])
        wait_until(lambda: len(renewals.asked) >= 2)
    assert "Heartbeat of test-heartbeat failed and goes on" in caplog.text
    assert "Clock of test-heartbeat failed and goes on" in caplog.text


def test_a_database_that_is_silent_keeps_no_lease_and_no_limit_from_its_end() -> None:
    silence = threading.Event()

    def hang(leases: Sequence[Lease]) -> list[tuple[Lease, Verdict]]:
        silence.wait(60)
        return []

    made = heart(hang, ttl=0.3)
    made.start()
    try:
        limited, lost = lease(1), lease(2)
        made.hold([limited, lost])
        made.time_limit(limited, 0.2)
        wait_until(lambda: lost.signal.revoked and limited.signal.revoked)
        assert lost.signal.why == "lease-lost"
        assert limited.signal.why == "timeout"
        made.stop()  # does not wait for the database
        assert not silence.is_set()
    finally:
        silence.set()


def test_it_starts_once_stops_twice_and_starts_again(quick: None) -> None:
    renewals = Renewals(Verdict.RENEWED)
    made = heart(renewals, ttl=30.0)
    made.start()
    threads = list(made._threads)
    made.start()
    assert made._threads == threads
    made.stop()
    made.stop()
    assert not any(thread.is_alive() for thread in threads)
    made.start()
    made.hold([lease()])
    wait_until(lambda: renewals.asked)
    made.stop()
