"""The database connections of a thread in which handlers run: clean before the next one (R40).

Called around every attempt in a slot, and after every async one for the thread in which coroutines
reach the database. What is wrong here is logged and mended; it never judges the job.
"""

import asyncio
import logging
from contextlib import suppress
from threading import local
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections
from django.db.backends.signals import connection_created

from gnl_django.queue.store.base import ClaimedRow

logger = logging.getLogger(__name__)


class _State:
    """What is known of one thread: whether it may have a connection open."""

    __slots__ = ("connected",)

    def __init__(self) -> None:
        opened = (each.connection for each in connections.all(initialized_only=True))
        self.connected = any(raw is not None for raw in opened)


class _Here(local):
    """This thread's state, made when it is first asked for.

    `beside` is that of the thread in which coroutines of `loop`, run here, reach the database.
    """

    def __init__(self) -> None:
        self.state = _State()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.beside = self.state


_here = _Here()


def _opened(**_: object) -> None:
    _here.state.connected = True


# Django says when a thread opens a connection: until then there is nothing to look after, and a job
# costs neither the look at all aliases (2 us) nor, from a coroutine, the hop to the thread of its
# database (80 us).
connection_created.connect(_opened, dispatch_uid="gnl_django.queue.hygiene")


class tidied:
    """Look after a slot's database connections before and after a handler."""

    __slots__ = ("_row",)

    def __init__(self, row: ClaimedRow) -> None:
        self._row = row

    def __enter__(self) -> None:
        _tidy_here(self._row)

    def __exit__(self, *_: object) -> None:
        _tidy_here(self._row)


def untidy() -> bool:
    """Tell, in a coroutine, whether there may be something for `tidy_async`."""
    here = _here
    return here.loop is not asyncio.get_running_loop() or here.beside.connected


async def tidy_async(row: ClaimedRow) -> None:
    """Look after the thread in which async code reaches the database."""
    with suppress(asyncio.CancelledError):  # revoked after its end: nothing left to cancel
        loop = asyncio.get_running_loop()
        if _here.loop is not loop:
            _here.beside = await sync_to_async(lambda: _here.state)()
            _here.loop = loop
        if _here.beside.connected:
            await sync_to_async(_tidy_here)(row)


def _tidy_here(row: ClaimedRow) -> None:
    state = _here.state
    if state.connected:
        state.connected = tidy_connections(row)


def tidy_connections(row: ClaimedRow) -> bool:
    """Leave no open transaction, no broken or old connection and no query log in this thread.

    Returns whether it has a connection at all: until a handler opens one, nothing is to be done.
    """
    connected = False
    for connection in connections.all(initialized_only=True):
        if connection.connection is None:
            continue
        connected = True
        try:
            _tidy(connection, row)
        except Exception as error:  # noqa: BLE001 - a connection in any state of disorder
            logger.warning(
                "The connection %r that the handler of %s left (job %d) is dropped: %s",
                connection.alias,
                row.kind,
                row.id,
                type(error).__name__,
            )
            _drop(connection)
    return connected


def _tidy(connection: Any, row: ClaimedRow) -> None:
    connection.queries_log.clear()
    if getattr(connection.connection, "closed", False) is True:
        _drop(connection)  # psycopg tells; the handler or the server has ended it
        return
    if not _in_transaction(connection):
        connection.close_if_unusable_or_obsolete()
        return
    logger.error(
        "The handler of %s left a transaction open on %r (job %d); it is rolled back",
        row.kind,
        connection.alias,
        row.id,
    )
    _drop(connection)


def _in_transaction(connection: Any) -> bool:
    """Ask Django, then the driver: a handler may have sent a BEGIN of its own."""
    if connection.in_atomic_block or not connection.get_autocommit():
        return True
    raw = connection.connection
    if connection.vendor == "postgresql":
        return bool(raw.info.transaction_status)
    if connection.vendor == "sqlite":
        return bool(raw.in_transaction)
    raw.rollback()  # the driver does not tell
    return False


def _drop(connection: Any) -> None:
    with suppress(Exception):
        connection.close()
    connection.in_atomic_block = False
    connection.connection = None
