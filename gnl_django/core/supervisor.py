"""Several processes of one command: starts them, starts a dead one again, passes signals on.

Run by `gnl_worker --processes` in the main thread of a process that does nothing else. It has no
database connection and no part in the work: each child is whole by itself (queue.md R64).
"""

import logging
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from queue import Empty, SimpleQueue
from time import monotonic
from types import FrameType
from typing import Any

from gnl_django.core.backoff import Growing

logger = logging.getLogger(__name__)

FIRST_WAIT = 1.0
LONGEST_WAIT = 30.0
#: Seconds after which a child counts as having worked: its next death waits the shortest time.
PROVEN = 60.0
LOOK = 0.1
#: Exit code of a child that has done its part and asks for a fresh process in its place.
AGAIN = 76
#: Holds the supervisor's process id in a child's environment.
VARIABLE = "GNL_SUPERVISOR"
FORWARDED = (signal.SIGTERM, signal.SIGINT)


def parent() -> int | None:
    """Return the process id of the supervisor that has started this process, None without one.

    Asked once: what this process starts itself has no supervisor.
    """
    found = os.environ.pop(VARIABLE, "")
    return int(found) if found.isdecimal() else None


def orphaned(supervisor: int | None) -> bool:
    """Tell whether the supervisor has died: nobody would start or stop this process any more."""
    return supervisor is not None and os.getppid() != supervisor


class _Slot:
    """The place of one child."""

    def __init__(self) -> None:
        self.popen: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0
        self.start_at = 0.0
        self.waits = Growing(FIRST_WAIT, LONGEST_WAIT)
        self.closed = False


class Supervisor:
    """Keeps `count` children of `command` running until a signal comes.

    finishes: a child that ends with 0 has no more to do and is not started again.
    """

    def __init__(self, command: Sequence[str], count: int, *, finishes: bool = False) -> None:
        self._command = list(command)
        self._finishes = finishes
        self._slots = [_Slot() for _ in range(count)]
        self._stopping = False
        self._marks: SimpleQueue[int] = SimpleQueue()

    def run(self) -> None:
        """Start the children and return when all have ended for good; main thread only."""
        before = {number: signal.signal(number, self._note) for number in FORWARDED}
        try:
            while not all(slot.closed for slot in self._slots):
                for slot in self._slots:
                    self._look_at(slot)
                self._wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._marks.put(number)  # the one thing that may be done here; see core.loop.Signals

    def _wait(self) -> None:
        try:
            number = self._marks.get(timeout=LOOK)
        except Empty:
            return
        # Once for each that comes: a child's second signal ends it at once.
        self._stopping = True
        for slot in self._slots:
            if slot.popen is not None:
                slot.popen.send_signal(number)

    def _look_at(self, slot: _Slot) -> None:
        if slot.popen is not None:
            code = slot.popen.poll()
            if code is None:
                return
            self._ended(slot, slot.popen.pid, code)
        if self._stopping:
            slot.closed = True
        if not slot.closed and monotonic() >= slot.start_at:
            self._start(slot)

    def _start(self, slot: _Slot) -> None:
        slot.started_at = monotonic()
        environment: Mapping[str, str] = {**os.environ, VARIABLE: str(os.getpid())}
        # Its own process group: Ctrl-C must reach it once, by way of us.
        group: dict[str, Any] = {"process_group": 0} if os.name == "posix" else {}
        slot.popen = subprocess.Popen(  # noqa: S603 - our own command line
            self._command, env=environment, stdin=subprocess.DEVNULL, **group
        )

    def _ended(self, slot: _Slot, pid: int, code: int) -> None:
        slot.popen = None
        if self._stopping or (code == 0 and self._finishes):
            slot.closed = True
            return
        lived = monotonic() - slot.started_at
        if code == AGAIN or lived >= PROVEN:
            slot.waits.reset()
        wait = 0.0 if code == AGAIN else slot.waits.take()
        slot.start_at = monotonic() + wait
        if code != AGAIN:
            logger.warning(
                "Process %d ended with %d after %.0f s; another starts in %.0f s",
                pid,
                code,
                lived,
                wait,
            )
