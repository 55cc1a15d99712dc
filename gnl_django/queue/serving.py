"""A Worker as a process: waits for a database with our tables, runs, ends in order.

Called by `gnl_worker` in the main thread, which handles the signals (queue.md R46, R52).
"""

import logging

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.migrations.executor import MigrationExecutor

from gnl_django.core.backoff import Growing
from gnl_django.core.db import Fault, fault_of, reconnect
from gnl_django.core.loop import ERROR_WAIT_FIRST, ERROR_WAIT_LONGEST, Signals
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


def serve(worker: Worker, *, grace: float, until_idle: bool) -> bool:
    """Run `worker` until a signal comes, or nothing is left to do with `until_idle`.

    grace: seconds that handlers get after the signal. Returns whether all of them have ended.
    """
    with Signals() as signals:
        worker.start()
        logger.info("Worker %s serves %s", worker.options.name, ", ".join(worker.options.queues))
        if until_idle:
            while not worker.idle() and not signals.wait(IDLE_LOOK):
                pass
        else:
            signals.wait()
        return worker.shut_down(grace)
