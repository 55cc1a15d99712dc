"""One statement on a caller's PostgreSQL connection, past Django's cursors where nobody notices.

Called by the runs' journal, and by the queue's store for an enqueue, of which Django's and
psycopg's cursors are a fifth (151 us of this process, 31 us so). All that a cursor would have
checked is checked here, and whoever watches statements (DEBUG, execute_wrapper, a tracer, a backend
of its own) sees them as before, because then `rows` does nothing and its caller takes a cursor.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import psycopg
from django.apps import apps
from django.db.backends import utils
from django.db.backends.base import base
from django.db.backends.postgresql.psycopg_any import is_psycopg3
from psycopg import pq

from gnl_django.core import pipeline

#: Where Django's own methods stand.
_DJANGO = (base.__file__, utils.__file__)


def rows(
    connection: Any, text: str, params: pipeline.Params, *, prepare: bool = False
) -> list[Any] | None:
    """Run one statement and return its rows; None, and nothing is done, where a cursor has to.

    connection: Django's. text: with `%(name)s`. prepare: keep its plan in the session, where no
    transaction is open. Raises what Django's cursor raises.
    """
    if connection.execute_wrappers or connection.queries_logged or not apps.ready:
        return None
    if "cursor" in vars(connection) or not _by_django(*_way(type(connection))):
        return None
    connection.close_if_health_check_failed()
    connection.ensure_connection()
    connection.validate_thread_sharing()
    raw = connection.connection
    if not is_psycopg3 or type(raw) is not psycopg.Connection or not _open(raw):
        return None
    if raw.cursor_factory.__module__ != "django.db.backends.postgresql.base":
        return None  # a tracer's
    connection.validate_no_broken_transaction()
    alone = raw.pgconn.transaction_status == pq.TransactionStatus.IDLE
    with connection.wrap_database_errors:
        if prepare and alone:
            return pipeline.run(raw, [(text, params)], prepare=True)[0]
        return pipeline.single(raw, text, params)


def _open(raw: Any) -> bool:
    """Tell whether a statement may be sent: in autocommit, or after a BEGIN that was sent."""
    pgconn = raw.pgconn
    if pgconn.pipeline_status != pq.PipelineStatus.OFF:
        return False
    status = pgconn.transaction_status
    idle = status == pq.TransactionStatus.IDLE and raw.autocommit
    return bool(idle or status == pq.TransactionStatus.INTRANS)


def _way(kind: Any) -> tuple[Callable[..., Any], ...]:
    """Return the methods by which a statement passes on its way to psycopg."""
    cursor: Any = utils.CursorWrapper
    return (
        kind._cursor,
        kind._prepare_cursor,
        kind.make_cursor,
        cursor.__init__,
        cursor.execute,
        cursor._execute_with_wrappers,
        cursor._execute,
    )


@lru_cache(maxsize=64)
def _by_django(*methods: Callable[..., Any]) -> bool:
    """Tell whether all of them are Django's own: neither a backend's nor somebody's patch."""
    codes = [getattr(method, "__code__", None) for method in methods]
    return all(code is not None and code.co_filename in _DJANGO for code in codes)
