"""Errors that the server itself raises, and connections that it kills (reliability.md 2.5)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from django.db import OperationalError, connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from tests.history import drop_trigger, row_trigger, run

JOB = "gnl_django_job"
OPS = ("INSERT", "UPDATE")
_RAISE = {
    "postgresql": "IF EXISTS (SELECT 1 FROM gnl_fault) THEN "
    "RAISE EXCEPTION 'planted' USING ERRCODE = '{code}'; END IF",
    "mysql": "IF (SELECT count(*) FROM gnl_fault) > 0 THEN "
    "SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {code}, MESSAGE_TEXT = 'planted'; END IF",
}


class Switch:
    """Turns a fault of the server on and off; both count at once for every connection."""

    def on(self) -> None:
        """From now on every write of a job fails."""
        run("default", "INSERT INTO gnl_fault VALUES (1)")

    def off(self) -> None:
        """The server is well again."""
        run("default", "DELETE FROM gnl_fault")


@contextmanager
def server_fault(code: str) -> Iterator[Switch]:
    """Let the server raise `code` (SQLSTATE, errno, or the name of SQLite's) when switched on."""
    if connection.vendor == "sqlite":
        with _sqlite_fault(code) as switch:
            yield switch
        return
    vendor = connection.vendor
    body = _RAISE[vendor].format(code=code)
    run("default", "CREATE TABLE gnl_fault (id integer)")
    for op in OPS:
        name = f"gnl_fault_{op.lower()}"
        run("default", *row_trigger(vendor, name, JOB, f"BEFORE {op}", body))
    try:
        yield Switch()
    finally:
        for op in OPS:
            run("default", drop_trigger(vendor, f"gnl_fault_{op.lower()}", JOB))
        run("default", "DROP TABLE gnl_fault")


class _Pragmas(Switch):
    """SQLite raises FULL and READONLY by itself, connection by connection of this process.

    Each connection is told by its own thread, in front of its next statement: nobody may touch one
    that another thread is closing.
    """

    def __init__(self, code: str) -> None:
        self._code = code
        self._active = False
        self._told: dict[BaseDatabaseWrapper, tuple[Any, bool]] = {}

    def made(self, *, connection: BaseDatabaseWrapper, **_: object) -> None:
        """Take part in the life of a new connection."""
        if self._tell not in connection.execute_wrappers:
            connection.execute_wrappers.append(self._tell)

    def on(self) -> None:
        self._active = True

    def off(self) -> None:
        self._active = False

    def _tell(
        self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any
    ) -> Any:
        self.tell(context["connection"])
        return execute(sql, params, many, context)

    def tell(self, wrapper: BaseDatabaseWrapper) -> None:
        """Set what holds now on a connection of this thread."""
        state = wrapper.connection, self._active
        if self._told.get(wrapper, (wrapper.connection, False)) == state:
            return
        self._told[wrapper] = state
        if self._code == "READONLY":
            pragma = f"query_only = {int(self._active)}"
        else:
            # No more pages than there are now (less is not possible).
            pragma = f"max_page_count = {1 if self._active else 1_000_000}"
        raw: Any = wrapper.connection
        raw.execute(f"PRAGMA {pragma}").fetchall()


@contextmanager
def _sqlite_fault(code: str) -> Iterator[Switch]:
    switch = _Pragmas(code)
    connection_created.connect(switch.made)
    switch.made(connection=connections["default"])
    try:
        yield switch
    finally:
        connection_created.disconnect(switch.made)
        connection.execute_wrappers.clear()
        switch.off()
        switch.tell(connections["default"])


def kill_connections() -> int:
    """Kill every connection to the test database but this thread's; return how many."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            return len(cursor.fetchall())
        cursor.execute(
            "SELECT id FROM information_schema.processlist "
            "WHERE db = DATABASE() AND id <> CONNECTION_ID()"
        )
        killed = 0
        for (number,) in cursor.fetchall():
            with suppress(OperationalError):  # it has ended since it was listed
                cursor.execute(f"KILL {int(number)}")
                killed += 1
        return killed
