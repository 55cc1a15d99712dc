"""A Worker as a process: waits for a database with our tables, runs, ends in order.

Called by `gnl_worker` in the main thread, which handles the signals (queue.md R46, R52).
"""

import logging
from dataclasses import dataclass

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.migrations.executor import MigrationExecutor

from gnl_django.core.backoff import Growing
from gnl_django.core.db import Fault, fault_of, reconnect
from gnl_django.core.loop import ERROR_WAIT_FIRST, ERROR_WAIT_LONGEST, Signals
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
class End:
    """How a worker's process ended: whether all handlers have, and its exit code."""

    clean: bool
    code: int


def serve(worker: Worker, *, grace: float, until_idle: bool, exit_when_stuck: bool = False) -> End:
    """Run `worker` until a signal comes.

    grace: seconds that handlers get then. until_idle: also end when nothing is left to do.
    exit_when_stuck: also end, with code 75, when a handler is stuck; its supervisor starts another.
    """
    with Signals() as signals:
        worker.start()
        logger.info("Worker %s serves %s", worker.options.name, ", ".join(worker.options.queues))
        stuck = False
        while not stuck and not (until_idle and worker.idle()):
            if signals.wait(IDLE_LOOK if until_idle else STUCK_LOOK if exit_when_stuck else None):
                break
            stuck = exit_when_stuck and worker.metrics().stuck > 0
        clean = worker.shut_down(0 if stuck else grace)
        return End(clean, STUCK_CODE if stuck else 0)
