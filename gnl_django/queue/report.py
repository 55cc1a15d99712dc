"""A worker's numbers as its Process row shows them; asked by `core.presence` at each heartbeat."""

from collections.abc import Callable
from time import monotonic

from gnl_django.core import clock
from gnl_django.core.fleet import Numbers
from gnl_django.core.memory import rss_kib
from gnl_django.core.presence import Presence
from gnl_django.queue.metrics import Ledger
from gnl_django.queue.settling import Roster
from gnl_django.queue.worker_options import WorkerOptions


class Report:
    """Collects them; called from the heartbeat thread."""

    def __init__(self, options: WorkerOptions, ledger: Ledger, roster: Roster) -> None:
        self._options = options
        self._ledger = ledger
        self._roster = roster
        self._error = ""
        self._error_at = 0.0

    def presence(
        self,
        drain: Callable[[], object],
        resume: Callable[[], object],
        beside: Callable[[], object],
    ) -> Presence:
        """Return the worker's presence: these numbers, and what is done when it is asked."""
        return Presence(
            "worker",
            self._options.name,
            self._options.queues,
            self,
            lambda command: (drain if command == "drain" else resume)(),
            using=self._options.using,
            beside=beside,
        )

    def pass_failed(self, error: Exception) -> None:
        """Remember the last exception of the loop: its class and first line."""
        self._error_at = monotonic()
        first = str(error).strip().split("\n")[0]
        self._error = f"{type(error).__name__}: {first}" if first else type(error).__name__

    def __call__(self) -> Numbers:
        """Return the numbers as they are now."""
        metrics = self._ledger.snapshot()
        now = monotonic()
        ages = [now - execution.lease.taken_at for execution in list(self._roster.values())]
        tick = metrics.last_tick_at
        # Two readings of one clock: whether it is right does not matter.
        since_pass = None if tick is None else max(0.0, (clock.wall() - tick).total_seconds())
        return Numbers(
            kinds=self._options.kinds(),
            concurrency=metrics.capacity,
            active=metrics.active,
            stuck=metrics.stuck,
            draining=metrics.draining,
            claimed=metrics.runs,
            completed=metrics.completed,
            failed=metrics.failed + metrics.retried,
            rss_kib=rss_kib(),
            last_error=self._error,
            oldest_age=max(ages, default=None),
            pass_age=since_pass,
            error_age=now - self._error_at if self._error else None,
        )
