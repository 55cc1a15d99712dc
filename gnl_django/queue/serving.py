"""A Worker as a process: waits for a database with our tables, runs, ends in order.

Called by `queue.process` in the main thread, which handles the signals (queue.md R46, R52).
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.migrations.executor import MigrationExecutor

from gnl_django.core.backoff import Growing
from gnl_django.core.db import Fault, fault_of, reconnect
from gnl_django.core.loop import ERROR_WAIT_FIRST, ERROR_WAIT_LONGEST, Signals
from gnl_django.core.memory import rss_kib
from gnl_django.core.supervisor import AGAIN, orphaned
from gnl_django.queue.worker import Worker

logger = logging.getLogger(__name__)

IDLE_LOOK = 0.05
STUCK_LOOK = 0.5
#: EX_TEMPFAIL: "try again later".
STUCK_CODE = 75


def wait_for_schema(using: str) -> None:
    """Return once the database answers and holds our tables.

    An unreachable database is waited for, with a line for each try. Raises ImproperlyConfigured
    when migrations of gnl_django are not applied, or when `using` is no alias.
    """
    if using not in connections:
        raise ImproperlyConfigured(f"DATABASES has no alias {using!r}")
    if not connections[using].settings_dict.get("AUTOCOMMIT", True):
        raise ImproperlyConfigured(f"DATABASES[{using!r}] has AUTOCOMMIT off: nothing would last")
    waits = Growing(ERROR_WAIT_FIRST, ERROR_WAIT_LONGEST)
    with Signals() as signals:
        while True:
            try:
                missing = missing_migrations(using)
                break
            except Exception as error:
                if fault_of(error) is not Fault.CONNECTION:
                    raise
                reconnect(using)
                wait = waits.take()
                logger.warning(
                    "The database %r cannot be reached (%s); next try in %.1f s",
                    using,
                    str(error).strip().split("\n")[0][:200],
                    wait,
                )
                if signals.wait(wait):
                    raise SystemExit(0) from None
        if signals.wait(0):  # it came while we looked
            raise SystemExit(0)
    reconnect(using)  # this thread only waits from here on: a pool's connection is for handlers
    if missing:
        raise ImproperlyConfigured(
            f"migrations of gnl_django are not applied on {using!r}: {', '.join(missing)}; "
            "run `manage.py migrate` first"
        )


def missing_migrations(using: str) -> list[str]:
    """Return the names of our migrations that are not applied."""
    executor = MigrationExecutor(connections[using])
    targets = [node for node in executor.loader.graph.leaf_nodes() if node[0] == "gnl_django"]
    return [migration.name for migration, _ in executor.migration_plan(targets)]


@dataclass(frozen=True)
class Limits:
    """After how much a process ends to make room for a fresh one; never before one job (R64)."""

    jobs: int | None = None
    rss_kib: int | None = None

    def reached(self, worker: Worker) -> bool:
        """Tell whether `worker` has done its part."""
        metrics = worker.metrics()
        if self.jobs is not None and metrics.runs >= self.jobs:
            return True
        ended = metrics.runs - metrics.active
        return self.rss_kib is not None and ended > 0 and (rss_kib() or 0) >= self.rss_kib


NO_LIMITS = Limits()


@dataclass(frozen=True)
class End:
    """How a worker's process ended: whether all handlers have, and its exit code."""

    clean: bool
    code: int


class _Why(Enum):
    """What ends a service beside a signal."""

    STUCK = "stuck"
    LIMIT = "limit"
    IDLE = "idle"
    ORPHANED = "orphaned"


def serve(
    worker: Worker,
    *,
    grace: float,
    until_idle: bool,
    exit_when_stuck: bool = False,
    limits: Limits = NO_LIMITS,
    supervisor: int | None = None,
) -> End:
    """Run `worker` until a signal comes.

    grace: seconds that handlers get then. until_idle: also end when nothing is left to do.
    exit_when_stuck: also end, with code 75, when a handler is stuck; its supervisor starts another.
    limits: also end when one is reached and every handler has ended; with code 76 under a
    supervisor. supervisor: the parent's process id (core.supervisor); when it dies, end as after a
    signal.
    """

    def reason() -> _Why | None:
        if exit_when_stuck and worker.metrics().stuck > 0:
            return _Why.STUCK
        if limits.reached(worker):  # such a worker looks idle too
            return _Why.LIMIT
        if until_idle and worker.idle():
            return _Why.IDLE
        return _Why.ORPHANED if orphaned(supervisor) else None

    soon = until_idle or limits != NO_LIMITS
    sometimes = exit_when_stuck or supervisor is not None
    with Signals() as signals:
        if limits.jobs is not None:
            worker.limit(limits.jobs)
        worker.start()
        logger.info(
            "Worker %s serves %s on %r: %s",
            worker.options.name,
            ", ".join(worker.options.queues),
            worker.options.using,
            ", ".join(worker.options.kinds()) or "no kind is registered",
        )
        why = reason()
        while why is None:
            if signals.wait(IDLE_LOOK if soon else STUCK_LOOK if sometimes else None):
                break
            why = reason()
        if why is _Why.LIMIT and _stuck_at_the_end(worker, signals, reason):
            why = _Why.STUCK
        clean = worker.shut_down(0 if why is _Why.STUCK else grace)
    code = STUCK_CODE if why is _Why.STUCK else 0
    return End(clean, AGAIN if why is _Why.LIMIT and supervisor is not None else code)


def _stuck_at_the_end(worker: Worker, signals: Signals, reason: Callable[[], _Why | None]) -> bool:
    """Let every handler end, unless a signal comes; return whether one never will."""
    worker.drain()
    while worker.holding() and not signals.wait(IDLE_LOOK):
        if reason() is _Why.STUCK:
            return True
    return False
