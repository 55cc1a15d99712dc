"""What differs between the databases, transactions of ours, and what an error means.

Used by every store. An error is classified by SQLSTATE or error number, never by the class that
Django or the driver chose (queue.md R12, R52).
"""

import logging
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import Enum
from typing import Any, TypeVar

from django.db import Error, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from gnl_django.core import clock

logger = logging.getLogger(__name__)
T = TypeVar("T")

TRANSIENT_TRIES = 3


class Fault(Enum):
    """What an error of the database asks of us."""

    TRANSIENT = "transient"  # the whole transaction again, at most three times
    CONNECTION = "connection"  # close, back off, connect again
    UNAVAILABLE = "unavailable"  # no space or read-only: back off and say so
    DATA = "data"  # the row's or the caller's fault
    OTHER = "other"


_SQLSTATES = {
    **dict.fromkeys(("40001", "40P01", "55P03", "57014"), Fault.TRANSIENT),
    **dict.fromkeys(("57P01", "57P02", "57P03", "25P03", "57P05"), Fault.CONNECTION),
    **dict.fromkeys(("53100", "25006"), Fault.UNAVAILABLE),
    "53300": Fault.CONNECTION,
}
_MYSQL = {
    **dict.fromkeys((1213, 1205, 3024, 1969), Fault.TRANSIENT),
    **dict.fromkeys((2002, 2003, 2006, 2013, 1053, 4031, 1040, 1927), Fault.CONNECTION),
    **dict.fromkeys((1114, 1290, 1021, 1836), Fault.UNAVAILABLE),
    **dict.fromkeys((1406, 1062, 1048, 1264, 1366, 3819, 4025), Fault.DATA),
}
_SQLITE = {
    5: Fault.TRANSIENT,  # BUSY
    6: Fault.TRANSIENT,  # LOCKED
    13: Fault.UNAVAILABLE,  # FULL
    8: Fault.UNAVAILABLE,  # READONLY
    14: Fault.CONNECTION,  # CANTOPEN
    19: Fault.DATA,  # CONSTRAINT
}


def fault_of(error: BaseException) -> Fault:
    """Return what `error`, or the driver's error it wraps, asks of us."""
    seen: BaseException | None = error
    while seen is not None:
        if (fault := _driver_fault(seen)) is not None:
            return fault
        seen = seen.__cause__ or seen.__context__
    return Fault.OTHER


def _driver_fault(error: BaseException) -> Fault | None:
    module = type(error).__module__
    if module.startswith("psycopg"):
        sqlstate = getattr(error, "sqlstate", None)
        if sqlstate is None:
            # psycopg raises OperationalError without a state when the connection is gone.
            gone = type(error).__name__ in {"OperationalError", "ConnectionTimeout", "PoolTimeout"}
            return Fault.CONNECTION if gone else None
        if sqlstate in _SQLSTATES:
            return _SQLSTATES[sqlstate]
        by_class = {"08": Fault.CONNECTION, "22": Fault.DATA, "23": Fault.DATA}
        return by_class.get(sqlstate[:2], Fault.OTHER)
    if module.startswith("MySQLdb"):
        code = error.args[0] if error.args else None
        if code in {0, ""}:  # "(0, '')": the client library has lost its connection
            return Fault.CONNECTION
        return _MYSQL.get(code, Fault.OTHER) if isinstance(code, int) else None
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else _SQLITE.get(code & 0xFF, Fault.OTHER)


@contextmanager
def own_transaction(connection: BaseDatabaseWrapper, *, durable: bool = False) -> Iterator[None]:
    """A short transaction of ours, READ COMMITTED; a savepoint inside the caller's (R52).

    durable: inside the caller's it is refused instead (Django's RuntimeError), but for a test's.

    On SQLite it takes the write lock when it begins, so that it can wait for it: a transaction that
    read first and writes later fails at once when another wrote between.
    """
    if _is_callers(connection):
        with transaction.atomic(using=connection.alias, durable=durable):
            yield
        return
    if connection.vendor == "sqlite":
        wrapper: Any = connection
        before, wrapper.transaction_mode = wrapper.transaction_mode, "IMMEDIATE"
        try:
            with transaction.atomic(using=connection.alias):
                yield
        finally:
            wrapper.transaction_mode = before
        return
    strict = strict_isolation(connection)
    if strict and connection.vendor == "mysql":
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
    with transaction.atomic(using=connection.alias):
        if strict and connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        yield


def in_callers_block(connection: BaseDatabaseWrapper) -> bool:
    """Tell whether a commit of ours would wait for the caller's transaction; a test's is none."""
    if not connection.in_atomic_block:
        return not connection.get_autocommit()
    block: Any = connection.atomic_blocks[-1]
    return not block._from_testcase


@contextmanager
def transparent_block(using: str) -> Iterator[None]:
    """A savepoint of ours around a user's code that counts as the block around it, not as its own.

    So that code which insists on durable transactions works in a test.
    """
    connection = connections[using]
    block: Any = transaction.atomic(using=using)
    block._from_testcase = not in_callers_block(connection)
    with block:
        yield


def _is_callers(connection: BaseDatabaseWrapper) -> bool:
    """Tell whether statements belong to a transaction that the caller has opened or manages."""
    return connection.in_atomic_block or not connection.get_autocommit()


def strict_isolation(connection: BaseDatabaseWrapper) -> bool:
    """Tell whether the session's default is stricter than READ COMMITTED; asked once a session."""
    connection.ensure_connection()
    raw = connection.connection
    wrapper: Any = connection
    known = getattr(wrapper, "_gnl_isolation", None)
    if known is not None and known[0] is raw:
        return bool(known[1])
    ask = {
        "postgresql": "SHOW default_transaction_isolation",
        "mysql": "SELECT @@SESSION.transaction_isolation"
        if getattr(connection, "mysql_is_mariadb", False) is False
        else "SELECT @@SESSION.tx_isolation",
    }.get(connection.vendor)
    strict = False
    if ask is not None:
        with connection.cursor() as cursor:
            cursor.execute(ask)
            level = cursor.fetchone()[0].lower().replace("-", " ")
        strict = level not in {"read committed", "read uncommitted"}
        strict = strict or _set_by_options(connection)
    wrapper._gnl_isolation = (raw, strict)
    return strict


def _set_by_options(connection: BaseDatabaseWrapper) -> bool:
    # On PostgreSQL Django's own option rides on each BEGIN, where SHOW does not see it.
    level = getattr(connection, "isolation_level", None)
    return connection.vendor == "postgresql" and level is not None and int(level) > 2


def after_commit(using: str, call: Callable[[], object]) -> None:
    """Call `call` when what has been done on alias `using` is committed; what it raises is logged.

    In a transaction that the caller manages by hand (`set_autocommit(False)`) nobody is told of its
    end: there it is not called at all. So nothing may hang on it that a poll does not make good.
    """
    connection = connections[using]
    if connection.in_atomic_block or connection.get_autocommit():
        transaction.on_commit(call, using=using, robust=True)


def now(using: str) -> datetime:
    """Return the database's present instant, aware, in UTC; one statement on alias `using`."""
    connection = connections[using]
    utc = " AT TIME ZONE 'UTC'" if connection.vendor == "postgresql" else ""
    with connection.cursor() as cursor:
        cursor.execute(clock.render(f"SELECT {{now}}{utc}", connection.vendor), [])
        value: datetime | str = cursor.fetchone()[0]
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    return moment.replace(tzinfo=UTC)


def send_notification(using: str, channel: str, payload: str) -> None:
    """PostgreSQL: tell the listeners of `channel`, when the caller's transaction commits."""
    from gnl_django.core import direct  # only here is psycopg sure to be installed

    text, params = "SELECT pg_notify(%(c)s, %(p)s)", {"c": channel, "p": payload}
    if direct.rows(connections[using], text, params) is None:
        with connections[using].cursor() as cursor:
            cursor.execute(text, params)


def listen(connection: BaseDatabaseWrapper, channel: str) -> None:
    """PostgreSQL: let this session hear `channel`; a connection of its own is meant."""
    with connection.cursor() as cursor:
        cursor.execute(f"LISTEN {connection.ops.quote_name(channel)}")


def alone(connection: BaseDatabaseWrapper, work: Callable[[], T]) -> T:
    """Run `work`, one statement, in whatever transaction the caller has.

    Outside of one a transient error makes it a transaction of ours, so that a session's strict
    isolation or a busy SQLite file does not reach the caller (R52). Costs nothing until then.
    """
    try:
        return work()
    except Error as error:
        if _is_callers(connection) or fault_of(error) is not Fault.TRANSIENT:
            raise
    return retrying(connection, lambda: _within(connection, work))


def read_committed(connection: BaseDatabaseWrapper, work: Callable[[], T]) -> T:
    """Run `work`, one statement of a loop of ours; in a transaction of ours in a strict session."""
    if connection.in_atomic_block or not strict_isolation(connection):
        return work()
    return retrying(connection, lambda: _within(connection, work))


def _within(connection: BaseDatabaseWrapper, work: Callable[[], T]) -> T:
    with own_transaction(connection):
        return work()


def retrying(connection: BaseDatabaseWrapper, work: Callable[[], T]) -> T:
    """Run `work` (one whole transaction) again, at most three times, on a transient error.

    Inside a caller's atomic block it runs once: there the whole of the caller's work would have to
    be repeated, which only the caller can do.
    """
    if _is_callers(connection):
        return work()
    for attempt in range(1, TRANSIENT_TRIES + 1):
        try:
            return work()
        except Exception as error:
            if attempt == TRANSIENT_TRIES or fault_of(error) is not Fault.TRANSIENT:
                raise
            logger.info("Transient database error, trying again: %s", type(error).__name__)
            threading.Event().wait(random.uniform(0.005, 0.05) * attempt)  # noqa: S311 - jitter
    raise AssertionError("unreachable")


def stand_outside_the_pool(using: str) -> None:
    """Give this thread a connection of its own where the project pools them (OPTIONS["pool"]).

    For threads that need one as long as they live: a pool whose connections handlers hold would let
    them wait, and leases run out. Does nothing once the thread has a connection.
    """
    connection = connections[using]
    if connection.settings_dict.get("OPTIONS", {}).get("pool") and connection.connection is None:
        own = connection.copy()
        own.settings_dict["OPTIONS"].pop("pool")
        connections[using] = own


def close_pools() -> None:
    """End the project's connection pools in this process (PostgreSQL's OPTIONS["pool"])."""
    for connection in connections.all(initialized_only=True):
        connection.close()
        getattr(connection, "close_pool", lambda: None)()


def shares_sessions(connection: Any) -> bool:
    """PostgreSQL: tell whether a pooler stands between us and the server.

    PgBouncer and its like announce a backend of their own making; one that only passes bytes on
    announces the session's.
    """
    connection.ensure_connection()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return bool(cursor.fetchone()[0] != connection.connection.info.backend_pid)


def missing_table(error: BaseException) -> bool:
    """Tell whether a statement failed because one of our tables is not there."""
    if "gnl_django_" not in str(error):
        return False
    cause = error.__cause__
    sqlstate = getattr(cause, "sqlstate", None)
    code = cause.args[0] if cause is not None and cause.args else None
    return sqlstate == "42P01" or code == 1146 or "no such table" in str(error)


def reconnect(using: str) -> None:
    """Drop this thread's connection after an error, so that the next statement opens a new one."""
    connection = connections[using]
    if not connection.in_atomic_block:
        try:
            connection.close()
        except Exception:  # noqa: BLE001 - closing what is broken may fail in any way
            connection.connection = None


def lossy_settings(using: str) -> list[str]:
    """Return the settings of alias `using` that let a power cut take commits back, as `a = b`.

    A session may have changed them for itself; this is how connections of ours see them.
    """
    ask, safe = {
        "postgresql": (
            "SELECT current_setting('fsync'), current_setting('full_page_writes'), "
            "current_setting('synchronous_commit')",
            {
                "fsync": {"on"},
                "full_page_writes": {"on"},
                "synchronous_commit": {"on", "local", "remote_write", "remote_apply"},
            },
        ),
        "mysql": (
            "SELECT @@GLOBAL.innodb_flush_log_at_trx_commit",
            {"innodb_flush_log_at_trx_commit": {"1"}},
        ),
        # NORMAL keeps the file whole, but in WAL mode not the last commits.
        "sqlite": ("PRAGMA synchronous", {"synchronous": {"2", "3"}}),
    }[connections[using].vendor]
    with connections[using].cursor() as cursor:
        cursor.execute(ask)
        found = cursor.fetchone()
    pairs = zip(safe.items(), map(str, found), strict=True)
    return [f"{name} = {value}" for (name, good), value in pairs if value not in good]
