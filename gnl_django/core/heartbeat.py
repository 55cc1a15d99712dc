"""Keeps every lease of a process alive and tells what was lost.

Started by a worker (later also by consumers and runs). One thread renews on a database connection
of its own, another only watches the clocks: a database that answers nothing more stops the first
but not the second. Neither runs users' code other than the `on_revoke` callbacks.
"""

import logging
import math
import threading
from collections.abc import Callable, Sequence
from enum import Enum
from time import monotonic
from typing import Protocol

from django.db import connections

from gnl_django.core.db import reconnect, stand_outside_the_pool
from gnl_django.core.leases import FAILURES_TO_LOSE, RENEWALS_PER_TTL, Lease, margin
from gnl_django.core.lifelines import impatient

logger = logging.getLogger(__name__)

#: Seconds for the thread that renews to end; it may be waiting for a database that is silent.
STOP_PATIENCE = 1.0


class Verdict(Enum):
    """What the database said of one lease."""

    RENEWED = "renewed"
    CANCELED = "canceled"  # renewed, and somebody asks the holder to stop
    LOCKED = "locked"  # still ours, but another transaction holds the row: ask again soon
    GONE = "gone"


Renew = Callable[[Sequence[Lease]], Sequence[tuple[Lease, Verdict]]]


class Pulse(Protocol):
    """What else the thread that renews does at times: `core.presence` writes a process's row."""

    due_at: float

    def beat(self) -> None:
        """Do it; called when the monotonic clock has reached `due_at`. Raises nothing."""

    def end(self) -> None:
        """Do it a last time: the thread ends."""


class Heartbeat:
    """Renews what is held every third of `ttl` seconds (queue.md R25, R26)."""

    def __init__(
        self, renew: Renew, *, ttl: float, using: str, name: str, pulse: Pulse | None = None
    ) -> None:
        self._renew = renew
        self._ttl = ttl
        self._using = using
        self._name = name
        self._pulse = pulse
        self._held: dict[tuple[int, str], Lease] = {}
        self._lock = threading.Lock()
        self._poke = threading.Event()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._next_beat = 0.0
        self._next_look = 0.0

    def hold(self, leases: Sequence[Lease]) -> None:
        """Keep `leases` alive from now on."""
        with self._lock:
            self._held.update({lease.key: lease for lease in leases})

    def drop(self, leases: Sequence[Lease]) -> None:
        """Stop renewing `leases`: they were settled, released or lost."""
        with self._lock:
            for lease in leases:
                self._held.pop(lease.key, None)

    def held(self) -> list[Lease]:
        """Return what is held, by id: batches lock rows in one order."""
        with self._lock:
            return [self._held[key] for key in sorted(self._held)]

    def time_limit(self, lease: Lease, longest: float | None) -> None:
        """Revoke `lease` with "timeout" when `longest` seconds have passed from now."""
        lease.hold_for(longest)
        if lease.hold_until is not None and lease.hold_until < self._next_look:
            self._poke.set()

    def start(self) -> None:
        """Start the threads, if they do not run."""
        if self._threads:
            return
        self._stopping = threading.Event()  # a thread that has not ended yet keeps its own
        self._next_beat = monotonic() + self._ttl / RENEWALS_PER_TTL
        for work, part in ((self._beat_on, "renewal"), (self._watch, "clock")):
            thread = threading.Thread(
                target=work, args=[self._stopping], name=f"{self._name}-{part}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """End the threads and wait for them, a moment for one that waits for the database."""
        threads, self._threads = self._threads, []
        self._stopping.set()
        self._poke.set()
        for thread in threads:
            thread.join(STOP_PATIENCE)

    def _beat_on(self, stopping: threading.Event) -> None:
        stand_outside_the_pool(self._using)
        impatient(connections[self._using])
        while not stopping.wait(max(0.0, self._next_act() - monotonic())):
            try:
                if monotonic() >= self._next_beat:
                    self.beat()
                if self._pulse is not None and monotonic() >= self._pulse.due_at:
                    self._pulse.beat()  # after the renewals: they are in a hurry
            except Exception:
                logger.exception("Heartbeat of %s failed and goes on", self._name)
        if self._pulse is not None:
            self._pulse.end()
        reconnect(self._using)

    def _next_act(self) -> float:
        if self._pulse is None:
            return self._next_beat
        return min(self._next_beat, self._pulse.due_at)

    def _watch(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            try:
                self._poke.clear()
                self._look_at_clocks()
                self._next_look = math.inf  # a limit that is set from here on wakes us
                self._next_look = self._earliest()
                if not stopping.is_set():
                    self._poke.wait(max(0.0, self._next_look - monotonic()))
            except Exception:
                logger.exception("Clock of %s failed and goes on", self._name)
                stopping.wait(margin(self._ttl))

    def _earliest(self) -> float:
        # What is held meanwhile is looked at in time: it lasts longer than this.
        moments = [monotonic() + self._ttl / RENEWALS_PER_TTL]
        for lease in self.held():
            moments.append(lease.gives_up_at(self._ttl))
            if lease.hold_until is not None and not lease.signal.revoked:
                moments.append(lease.hold_until)
        return min(moments)

    def _look_at_clocks(self) -> None:
        now = monotonic()
        for lease in self.held():
            if now >= lease.gives_up_at(self._ttl):
                self._lose(lease)
            elif lease.hold_until is not None and now >= lease.hold_until:
                lease.signal.revoke("timeout")

    def beat(self) -> None:
        """Renew everything held, in one statement, and pass on what the database answered."""
        started = monotonic()
        self._next_beat = started + self._ttl / RENEWALS_PER_TTL
        held = self.held()
        if not held:
            return
        try:
            verdicts = self._renew(held)
        except Exception as error:  # noqa: BLE001 - a failed renewal is an event of its own (R26)
            logger.warning("Renewal of %d leases failed: %s", len(held), type(error).__name__)
            reconnect(self._using)
            for lease in held:
                lease.failures += 1
                if lease.failures >= FAILURES_TO_LOSE:
                    self._lose(lease)
                elif lease.failures == FAILURES_TO_LOSE - 1:
                    # Fewer failures never lose it: the last try comes before its clock runs out.
                    last_try = lease.gives_up_at(self._ttl) - margin(self._ttl) / 2
                    self._next_beat = min(self._next_beat, last_try)
            return
        for lease, verdict in verdicts:
            self._take(lease, verdict, started)

    def _take(self, lease: Lease, verdict: Verdict, started: float) -> None:
        if verdict is Verdict.GONE:
            self._lose(lease)
        elif verdict is Verdict.LOCKED:
            self._next_beat = min(self._next_beat, started + margin(self._ttl))
        else:
            lease.good_at = started
            lease.failures = 0
            if verdict is Verdict.CANCELED:
                lease.signal.revoke("canceled")

    def _lose(self, lease: Lease) -> None:
        # A lease that was settled meanwhile is no longer held, and not lost either.
        with self._lock:
            held = self._held.pop(lease.key, None)
        if held is not None:
            lease.signal.revoke("lease-lost")
