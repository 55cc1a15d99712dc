"""A worker's numbers: room for handlers, and counters since it was made (queue.md 3.8, R18)."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

COUNTERS = (
    "runs", "completed", "failed", "retried", "dead_lettered", "canceled", "lost", "released",
    "deferred", "polls", "reaped",
)  # fmt: skip


@dataclass(frozen=True)
class WorkerMetrics:
    """A snapshot. Counters are cumulative since construction;
    `runs` = completed + failed + retried + canceled + lost + released + deferred + those running.
    """

    active: int = 0
    claiming: int = 0
    capacity: int = 0
    draining: bool = False
    runs: int = 0
    completed: int = 0
    failed: int = 0
    retried: int = 0
    dead_lettered: int = 0
    canceled: int = 0
    lost: int = 0
    released: int = 0
    deferred: int = 0
    polls: int = 0
    reaped: int = 0
    stuck: int = 0
    last_tick_at: datetime | None = None


class Ledger:
    """The numbers behind the snapshot; every method may be called from any thread.

    `active + claiming <= capacity` always: room is reserved before a claim and turned into running
    jobs in one step after it. A job is `open` from its claim until its outcome is settled, so that
    a slot is free again before that.
    """

    def __init__(self, capacity: int) -> None:
        self._changed = threading.Condition()
        self._capacity = capacity
        self._claiming = 0
        self._active = 0
        self._open = 0
        self._stuck = 0
        self._replaced = 0
        self._counters = dict.fromkeys(COUNTERS, 0)
        self._last_tick_at: datetime | None = None
        self.draining = False
        #: Jobs that may be claimed in all, None without a limit.
        self.most_runs: int | None = None

    def reserve(self, most: int) -> int:
        """Reserve room for up to `most` jobs; return how many, 0 while draining."""
        with self._changed:
            free = self._capacity - self._active - self._claiming
            if self.most_runs is not None:
                free = min(free, self.most_runs - self._counters["runs"] - self._claiming)
            room = 0 if self.draining else max(0, min(free, most))
            self._claiming += room
            return room

    def taken(self, reserved: int, started: int) -> None:
        """Turn a reservation into `started` running jobs."""
        with self._changed:
            self._claiming -= reserved
            self._active += started
            self._open += started
            self._counters["runs"] += started
            self._changed.notify_all()

    def ended(self) -> None:
        """Note that a handler has returned: its slot is free."""
        with self._changed:
            self._active -= 1
            if not self._active:  # all that anybody waits for (0.4 us a job)
                self._changed.notify_all()

    def stuck(self) -> bool:
        """Count a handler as stuck; return whether a slot opens in its place.

        At most as many as the worker has (queue.md R31).
        """
        with self._changed:
            self._stuck += 1
            replaced = self._replaced < self._capacity
            if replaced:
                self._replaced += 1
                self._active -= 1
            return replaced

    def unstuck(self, *, replaced: bool) -> None:
        """Note that a stuck handler has returned after all."""
        with self._changed:
            self._stuck -= 1
            if replaced:
                self._replaced -= 1
            else:
                self._active -= 1
            self._changed.notify_all()

    def left(self, *counters: str) -> None:
        """Note that a job is settled, lost or given back, under each of `counters`."""
        self.left_all([counters])

    def left_all(self, jobs: Sequence[tuple[str, ...]]) -> None:
        """Note the same of several jobs, each with its counters."""
        with self._changed:
            self._open -= len(jobs)
            for counters in jobs:
                for counter in counters:
                    self._counters[counter] += 1
            if not self._open:
                self._changed.notify_all()

    def count(self, counter: str, times: int = 1) -> None:
        """Add to a counter."""
        with self._changed:
            self._counters[counter] += times

    def ticked(self, at: datetime) -> None:
        """Note the end of a pass."""
        with self._changed:
            self._counters["polls"] += 1
            self._last_tick_at = at

    @property
    def active(self) -> int:
        """Handlers that run."""
        return self._active

    @property
    def free(self) -> int:
        """Slots that neither run nor are reserved."""
        return self._capacity - self._active - self._claiming

    @property
    def open(self) -> int:
        """Jobs that are being claimed, run or wait to be settled."""
        return self._open + self._claiming

    @property
    def closed(self) -> bool:
        """Whether `reserve` would give no room."""
        return self.draining or self.free <= 0

    def wait_idle(self, timeout: float | None) -> bool:
        """Wait until nothing is claimed, runs or waits to be settled; return whether it is so."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._open and not self._claiming, timeout)

    def wait_returned(self, timeout: float) -> bool:
        """Wait until no handler runs; return whether it is so."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._active, timeout)

    def snapshot(self) -> WorkerMetrics:
        """Return the numbers as they are now."""
        with self._changed:
            return WorkerMetrics(
                active=self._active,
                claiming=self._claiming,
                stuck=self._stuck,
                capacity=self._capacity,
                draining=self.draining,
                last_tick_at=self._last_tick_at,
                **self._counters,
            )
