"""The poll loop never ends by an error; signals are seen whenever they come."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from time import monotonic
from typing import Any

import pytest
from django.db import OperationalError

from gnl_django.core import loop as loops
from gnl_django.core.loop import PollLoop, Signals
from tests.support import wait_until

pytestmark = pytest.mark.django_db


class Looping:
    """A loop whose steps and errors are noted."""

    def __init__(self, step: Callable[[], float], failed: Callable[[Exception], None]) -> None:
        self.loop = PollLoop(
            step, using="default", name="Test loop", failed=failed, idle_wait=lambda: 0.01
        )


Start = Callable[..., PollLoop]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start loops and stop them at the end."""
    started: list[PollLoop] = []

    def start_loop(
        step: Callable[[], float], failed: Callable[[Exception], None] = lambda _: None
    ) -> PollLoop:
        made = Looping(step, failed).loop
        started.append(made)
        made.start()
        return made

    yield start_loop
    for made in started:
        assert made.stop(30)


class Unreachable(OperationalError):
    """What Django raises when the server is away; its cause is the driver's."""


def gone() -> Exception:
    """Return an error that is classified as a lost connection."""
    error = Unreachable("the server is away\nand says so in two lines")
    driver = type("OperationalError", (Exception,), {"__module__": "psycopg.errors"})
    error.__cause__ = driver("connection lost")
    return error


def test_the_first_pass_is_immediate_and_the_next_comes_after_the_wait(start: Start) -> None:
    moments: list[float] = []

    def step() -> float:
        moments.append(monotonic())
        return 0.05

    began = monotonic()
    start(step)
    wait_until(lambda: len(moments) >= 3)
    assert moments[0] - began < 20
    assert moments[1] - moments[0] >= 0.049


def test_a_step_that_asks_for_no_wait_is_called_again_at_once(start: Start) -> None:
    steps: list[int] = []

    def step() -> float:
        steps.append(1)
        return 0.0 if len(steps) < 500 else 60.0

    start(step)
    wait_until(lambda: len(steps) == 500)


def test_a_wake_up_ends_the_wait_also_when_it_came_during_the_step(start: Start) -> None:
    inside, go_on, steps = threading.Event(), threading.Event(), []

    def step() -> float:
        steps.append(1)
        inside.set()
        if len(steps) == 1:
            assert go_on.wait(30)
        return 60.0

    made = start(step)
    assert inside.wait(30)
    made.wake()
    made.wake()
    go_on.set()
    wait_until(lambda: len(steps) == 2)
    made.wake()
    wait_until(lambda: len(steps) == 3)


def test_a_step_may_wait_for_a_wake_up_itself(start: Start) -> None:
    waits: list[bool] = []

    def step() -> float:
        waits.append(made.wait(0.01 if waits else 60))
        return 60.0

    made: PollLoop = PollLoop(
        step, using="default", name="w", failed=lambda _: None, idle_wait=lambda: 1
    )
    made.start()
    made.wake()
    wait_until(lambda: waits == [True])
    made.wake()
    wait_until(lambda: len(waits) == 2)
    assert made.stop(30)


def test_an_error_is_logged_told_and_followed_by_an_idle_wait(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Exception] = []
    steps: list[int] = []

    def step() -> float:
        steps.append(1)
        if len(steps) < 3:
            raise ValueError("a pass failed")
        return 60.0

    start(step, told.append)
    wait_until(lambda: len(steps) == 3)
    assert [str(error) for error in told] == ["a pass failed"] * 2
    assert caplog.text.count("Test loop: a pass failed and the loop goes on") == 2


def test_a_callback_that_fails_does_not_end_the_loop(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    steps: list[int] = []

    def step() -> float:
        steps.append(1)
        if len(steps) == 1:
            raise ValueError("first")
        return 60.0

    def broken(error: Exception) -> None:
        raise RuntimeError("on_error itself")

    start(step, broken)
    wait_until(lambda: len(steps) == 2)
    assert "on_error of Test loop failed" in caplog.text


def test_a_lost_database_is_said_in_one_line_and_waited_for_longer_each_time(
    start: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "ERROR_WAIT_FIRST", 0.02)
    moments: list[float] = []

    def step() -> float:
        moments.append(monotonic())
        if len(moments) < 5:
            raise gone()
        return 60.0

    start(step)
    wait_until(lambda: len(moments) == 5)
    gaps = [two - one for one, two in pairwise(moments)]
    for gap, wanted in zip(gaps, (0.02, 0.04, 0.08, 0.16), strict=True):
        assert gap >= wanted * 0.9 - 0.001
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 4
    assert all("the database does not serve (Unreachable: the server is away); next try" in line
               for line in lines)  # fmt: skip


def test_the_waits_after_errors_end_at_ten_seconds() -> None:
    assert (loops.ERROR_WAIT_FIRST, loops.ERROR_WAIT_LONGEST) == (0.5, 10.0)


def test_a_stop_waits_for_the_pass_and_says_when_it_takes_too_long(start: Start) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def step() -> float:
        inside.set()
        assert go_on.wait(30)
        return 60.0

    made = start(step)
    assert made.running
    assert inside.wait(30)
    assert made.stop(0.01) is False
    assert made.running
    go_on.set()
    assert made.stop(30) is True
    assert made.stop() is True
    assert not made.running


def test_a_loop_starts_once_and_may_start_again(start: Start) -> None:
    threads: set[Any] = set()

    def step() -> float:
        threads.add(threading.current_thread())
        return 0.01

    made = start(step)
    made.start()
    wait_until(lambda: threads)
    assert made.stop(30)
    made.start()
    wait_until(lambda: len(threads) == 2)


# signals


def kill(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.fixture(autouse=True)
def _late_signals_end_nothing() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_wait_and_stays_seen(number: int) -> None:
    with Signals() as signals:
        assert signals.wait(0) is False
        timer = threading.Timer(0.05, kill, (number,))
        timer.start()
        assert signals.wait() is True
        timer.join()
        assert signals.wait() is True
        assert signals.wait(0) is True


def test_a_signal_before_the_wait_is_seen() -> None:
    with Signals() as signals:
        kill(signal.SIGTERM)
        assert signals.wait() is True


@pytest.mark.row("queue", "C139")
def test_a_signal_that_does_not_interrupt_the_main_thread_is_seen_all_the_same() -> None:
    """The kernel may hand it to any thread, and it may come just before the wait begins."""
    mask = {signal.SIGTERM}

    def take_it() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, mask)
        threading.Event().wait(0.1)
        kill(signal.SIGTERM)

    thread = threading.Thread(target=take_it)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, mask)
    try:
        with Signals() as signals:
            thread.start()
            assert signals.wait() is True
    finally:
        thread.join(10)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_the_handlers_before_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with Signals():
        assert signal.getsignal(signal.SIGTERM) not in before
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
