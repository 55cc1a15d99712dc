"""A Worker as a process: waits for a database with our tables, runs, ends in order.

Called by `queue.process` in the main thread, which handles the signals (queue.md R46, R52).
"""

import logging
from dataclasses import dataclass

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.migrations.executor import MigrationExecutor

from gnl_django.core.backoff import Growing
from gnl_django.core.db import Fault, fault_of, reconnect
from gnl_django.core.loop import ERROR_WAIT_FIRST, ERROR_WAIT_LONGEST, Signals
from gnl_django.core.memory import rss_kib
from gnl_django.core.supervisor import orphaned
from gnl_django.queue.worker import Worker

logger = logging.getLogger(__name__)

IDLE_LOOK = 0.05


def wait_for_schema(using: str) -> None:
    """Return once the database answers and holds our tables.

    An unreachable database is waited for, with a line for each try. Raises ImproperlyConfigured
    when migrations of gnl_django are not applied, or when `using` is no alias.
    """
    if using not in connections:
        raise ImproperlyConfigured(f"DATABASES has no alias {using!r}")
    waits = Growing(ERROR_WAIT_FIRST, ERROR_WAIT_LONGEST)
    with Signals() as signals:
        while True:
            try:
                missing = _missing_migrations(using)
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
    if missing:
        raise ImproperlyConfigured(
            f"migrations of gnl_django are not applied on {using!r}: {', '.join(missing)}; "
            "run `manage.py migrate` first"
        )


def _missing_migrations(using: str) -> list[str]:
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


@dataclass(frozen=True)
class Ending:
    """How serving ended: whether all handlers have, and whether a limit was the reason."""

    clean: bool
    again: bool = False


def serve(
    worker: Worker,
    *,
    grace: float,
    until_idle: bool,
    limits: Limits = Limits(),
    supervisor: int | None = None,
) -> Ending:
    """Run `worker` until a signal comes, a limit is reached, or nothing is left with `until_idle`.

    grace: seconds that handlers get after the signal. A limit lets every handler end. supervisor:
    process id of the parent (core.supervisor); when it has died the worker ends as after a signal.
    """
    if limits.jobs is not None:
        worker.limit(limits.jobs)
    forever = not until_idle and supervisor is None and limits == Limits()
    again = False
    with Signals() as signals:
        worker.start()
        logger.info("Worker %s serves %s", worker.options.name, ", ".join(worker.options.queues))
        while not signals.wait(None if forever else IDLE_LOOK):
            if limits.reached(worker):  # asked first: such a worker looks idle too
                again = True
                worker.drain()
                while worker.holding() and not signals.wait(IDLE_LOOK):
                    pass
                break
            if (until_idle and worker.idle()) or orphaned(supervisor):
                break
        return Ending(worker.shut_down(grace), again)
