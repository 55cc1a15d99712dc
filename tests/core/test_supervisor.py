"""Several processes of one command: restarts, back-off, signals. The children are small scripts."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from gnl_django.core import supervisor
from gnl_django.core.supervisor import Supervisor, _Slot
from tests.support import wait_until

#: Each start appends a line with the pid and the supervisor to the log.
HEAD = """
import os, signal, sys, threading
log = sys.argv[1]
def say(word):
    with open(log, "a") as out:
        out.write(f"{word} {os.getpid()} {os.environ.get('GNL_SUPERVISOR')} {os.getpgrp()}\\n")
"""
SERVES = """
signals = []
def note(number, frame):
    signals.append(number)
    if len(signals) == int(sys.argv[2]):
        say("told " + ",".join(map(str, signals)))
        sys.exit(0)
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, note)
say("starts")
while True:
    signal.pause()
"""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "FIRST_WAIT", 0.05)
    monkeypatch.setattr(supervisor, "LOOK", 0.01)


def lines(log: Path, word: str) -> list[list[str]]:
    text = log.read_text() if log.exists() else ""
    return [line.split() for line in text.splitlines() if line.startswith(word)]


def supervise(code: str, log: Path, count: int, *args: str, finishes: bool = False) -> Supervisor:
    return Supervisor(
        [sys.executable, "-c", HEAD + code, str(log), *args], count, finishes=finishes
    )


def meanwhile(act: Callable[[], None]) -> threading.Thread:
    """Do something beside the supervisor, which needs the main thread."""
    thread = threading.Thread(target=act)
    thread.start()
    return thread


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_on_once_and_the_children_are_waited_for(
    tmp_path: Path, number: signal.Signals
) -> None:
    log = tmp_path / "log"

    def act() -> None:
        wait_until(lambda: len(lines(log, "starts")) == 2)
        os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    beside = meanwhile(act)
    supervise(SERVES, log, 2, "1").run()
    beside.join()
    assert signal.getsignal(number) is before
    assert [line[1] for line in lines(log, "told")] == [str(int(number))] * 2
    for _, pid, parent, group in lines(log, "starts"):
        assert parent == str(os.getpid())
        assert group == pid  # Ctrl-C on the terminal reaches the supervisor alone
        assert not psutil.pid_exists(int(pid))


def test_a_second_signal_is_passed_on_too(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def act() -> None:
        wait_until(lambda: lines(log, "starts"))
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)

    beside = meanwhile(act)
    supervise(SERVES, log, 1, "2").run()
    beside.join()
    assert lines(log, "told")[0][1] in {"15,2", "2,15"}


def test_a_dead_child_is_started_again_in_its_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = tmp_path / "log"

    def act() -> None:
        wait_until(lambda: len(lines(log, "starts")) == 2)
        os.kill(int(lines(log, "starts")[0][1]), signal.SIGKILL)
        wait_until(lambda: len(lines(log, "starts")) == 3)
        os.kill(os.getpid(), signal.SIGTERM)

    beside = meanwhile(act)
    supervise(SERVES, log, 2, "1").run()
    beside.join()
    assert len(lines(log, "told")) == 2
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "ended with -9 after" in record.getMessage()


@pytest.mark.parametrize("code", [0, 1, 75])
def test_a_child_that_ends_by_itself_is_started_again_after_a_wait_that_doubles(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    log = tmp_path / "log"
    monkeypatch.setattr(supervisor, "LONGEST_WAIT", 0.1)

    def act() -> None:
        wait_until(lambda: len(lines(log, "starts")) == 4)
        os.kill(os.getpid(), signal.SIGTERM)

    made = supervise("say('starts')\nsys.exit(int(sys.argv[2]))", log, 1, str(code))
    waits: list[float] = []
    real = made._slots[0].waits.take

    def take() -> float:
        waits.append(real())
        return waits[-1]

    monkeypatch.setattr(made._slots[0].waits, "take", take)
    beside = meanwhile(act)
    made.run()
    beside.join()
    assert waits[:3] == [0.05, 0.1, 0.1]
    assert all(f"ended with {code} " in text for text in caplog.messages)


def test_the_waits_are_a_second_doubling_to_thirty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    waits = _Slot().waits
    assert [waits.take() for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]


def test_a_child_that_has_worked_for_a_while_waits_the_shortest_time_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = supervise("", tmp_path / "log", 1)
    (slot,) = made._slots
    now = [100.0]
    monkeypatch.setattr(supervisor, "monotonic", lambda: now[0])
    waits = []
    for lived in (1, 1, 59, 61, 1):
        slot.started_at = now[0] - lived
        made._ended(slot, 1, 1)
        waits.append(round(slot.start_at - now[0], 3))
    assert waits == [0.05, 0.1, 0.2, 0.05, 0.1]


def test_a_child_that_asks_for_a_fresh_process_gets_it_at_once_and_without_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "FIRST_WAIT", 60.0)
    log = tmp_path / "log"
    code = "say('starts')\nsys.exit(0 if len(open(log).readlines()) > 3 else 76)"
    supervise(code, log, 1, finishes=True).run()
    assert len(lines(log, "starts")) == 4
    assert caplog.records == []


def test_children_that_finish_are_not_started_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    supervise("say('starts')", log, 3, finishes=True).run()
    assert len(lines(log, "starts")) == 3


def test_a_child_knows_its_supervisor_and_its_own_children_have_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GNL_SUPERVISOR", "4711")
    assert supervisor.parent() == 4711
    assert "GNL_SUPERVISOR" not in os.environ
    assert supervisor.parent() is None
    monkeypatch.setenv("GNL_SUPERVISOR", "nonsense")
    assert supervisor.parent() is None


def test_a_process_whose_supervisor_has_died_is_an_orphan() -> None:
    assert supervisor.orphaned(None) is False
    assert supervisor.orphaned(os.getppid()) is False
    assert supervisor.orphaned(os.getpid()) is True
