"""Handlers that go on long after they were told to stop: they are named, and do not block others.

Looked after by the worker's control thread (queue.md R31). A thread cannot be ended from outside;
what can be done is to say so once, to open a slot in its place, and to let an operator decide.
"""

import logging
import threading
from collections.abc import Iterable
from time import monotonic

from gnl_django.core.pool import Pool
from gnl_django.queue.execution import Execution
from gnl_django.queue.metrics import Ledger

logger = logging.getLogger(__name__)


class StuckWatch:
    """Watches the executions of one worker; `ttl` seconds after its revocation one is stuck."""

    def __init__(self, ledger: Ledger, pool: Pool[Execution], *, ttl: float) -> None:
        self._ledger = ledger
        self._pool = pool
        self._ttl = ttl
        self._lock = threading.Lock()

    def look(self, executions: Iterable[Execution]) -> float | None:
        """Name those that have become stuck; return the seconds until another one may be."""
        now, next_in = monotonic(), None
        for execution in executions:
            signal = execution.lease.signal
            if signal.revoked_at is None or signal.why == "canceled" or execution.stuck:
                continue
            left = signal.revoked_at + self._ttl - now
            if left <= 0:
                self._mark(execution, now - signal.revoked_at)
            elif execution.running:
                next_in = left if next_in is None else min(left, next_in)
        return next_in

    def _mark(self, execution: Execution, seconds: float) -> None:
        with self._lock:
            if not execution.running:
                return
            execution.stuck = True
            execution.replaced = self._ledger.stuck()
            if execution.replaced and not execution.kind.is_async:
                self._pool.grow()
        logger.warning(
            "Stuck: the handler of job %d (%s) still runs %.0f s after its signal (%s)",
            execution.row.id,
            execution.row.kind,
            seconds,
            execution.lease.signal.why,
        )

    def ended(self, execution: Execution) -> None:
        """Note that a handler has returned; from the thread it ran in."""
        with self._lock:
            execution.running = False
            if not execution.stuck:
                self._ledger.ended()
                return
            self._ledger.unstuck(replaced=execution.replaced)
            if execution.replaced and not execution.kind.is_async:
                self._pool.shrink()
