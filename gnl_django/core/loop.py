"""The poll loop of a control thread, and the process around it.

A loop calls its step, waits as long as the step asks or until it is woken, and never ends by an
error: it logs, backs off and looks again (queue.md R9-R12). `Signals` turns SIGTERM and SIGINT into
a flag for the main thread.
"""

import logging
import os
import random
import signal
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any

from django.db import connections

from gnl_django.core.backoff import Growing
from gnl_django.core.db import Fault, fault_of, reconnect, stand_outside_the_pool
from gnl_django.core.lifelines import impatient

logger = logging.getLogger(__name__)

ERROR_WAIT_FIRST = 0.5
ERROR_WAIT_LONGEST = 10.0
SIGNAL_LOOK = 0.5
RECOVERING = frozenset({Fault.CONNECTION, Fault.UNAVAILABLE})


class PollLoop:
    """Calls `step` for ever on a thread of its own.

    `step()` does one pass and returns the seconds to wait before the next, 0 for at once. `failed`
    is given the exception of a pass that raised; `idle_wait` is what an empty pass would wait.
    """

    def __init__(
        self,
        step: Callable[[], float],
        *,
        using: str,
        name: str,
        failed: Callable[[Exception], None],
        idle_wait: Callable[[], float],
    ) -> None:
        self._step = step
        self._using = using
        self._name = name
        self._failed = failed
        self._idle_wait = idle_wait
        self._woken = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._error_waits = Growing(ERROR_WAIT_FIRST, ERROR_WAIT_LONGEST)

    @property
    def running(self) -> bool:
        """Whether the thread has been started and not stopped."""
        return self._thread is not None

    def wake(self) -> None:
        """End the present wait."""
        if not self._woken.is_set():  # cheaper than set(), and slots call this for every job
            self._woken.set()

    def wait(self, seconds: float) -> bool:
        """Wait until woken, at most `seconds`; return whether a wake-up came. For the step."""
        woken = self._woken.wait(seconds)
        self._woken.clear()
        return woken

    def start(self) -> None:
        """Start the thread; the first pass is immediate."""
        if self._thread is None:
            self._stopping = False
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def stop(self, timeout: float | None = None) -> bool:
        """Ask the loop to end after its pass and wait for it; return whether it has ended."""
        thread = self._thread
        if thread is None:
            return True
        self._stopping = True
        self._woken.set()
        thread.join(timeout)
        if thread.is_alive():
            return False
        self._thread = None
        return True

    def _run(self) -> None:
        stand_outside_the_pool(self._using)
        impatient(connections[self._using])
        while not self._stopping:
            try:
                wait = self._step()
                self._error_waits.reset()
            except Exception as error:  # noqa: BLE001 - the loop never ends by an error (R12)
                wait = self._after(error)
            if wait > 0 and not self._stopping:
                self._woken.wait(wait)
            self._woken.clear()
        reconnect(self._using)

    def _after(self, error: Exception) -> float:
        reconnect(self._using)
        if fault_of(error) in RECOVERING:
            wait = self._error_waits.take() * random.uniform(0.9, 1.1)  # noqa: S311 - jitter
            logger.warning(
                "%s: the database does not serve (%s: %s); next try in %.1f s",
                self._name,
                type(error).__name__,
                str(error).strip().split("\n")[0][:200],
                wait,
            )
        else:
            logger.error("%s: a pass failed and the loop goes on", self._name, exc_info=error)
            wait = self._idle_wait()
        try:
            self._failed(error)
        except BaseException:  # SystemExit too: the loop goes on (R12)
            logger.exception("on_error of %s failed", self._name)
        return wait


class Signals:
    """SIGTERM and SIGINT as a flag; a second one ends the process at once (queue.md R46).

    The handler puts a mark into a SimpleQueue, the one thing of the standard library that may be
    done there: an Event's lock may be held by the very code that the signal interrupted. In another
    thread than the main one, where Python allows no handler, only the waiting is left.
    """

    def __init__(self) -> None:
        self._marks: SimpleQueue[int] = SimpleQueue()
        self._count = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        main = threading.current_thread() is threading.main_thread()
        for number in (signal.SIGTERM, signal.SIGINT) if main else ():
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count > 1:
            os._exit(0)
        self._marks.put(number)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the first signal, at most `seconds`; return whether it has come."""
        while not self._count:
            try:
                # Python sees a signal that came just before this call only when it returns.
                self._marks.get(timeout=SIGNAL_LOOK if seconds is None else seconds)
            except Empty:
                if seconds is not None:
                    break
        return self._count > 0
