"""A statement past Django's cursors: only where nobody watches, and with all their checks."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from django.apps import apps
from django.core.exceptions import SynchronousOnlyOperation
from django.db import DatabaseError, IntegrityError, InterfaceError, connections, transaction
from django.db.backends import utils
from django.db.transaction import TransactionManagementError

from gnl_django.core import direct
from gnl_django.models import Job

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.postgres("the others go through Django's cursors"),
]

ONE = "SELECT %(x)s::int, 5 %% 3"


@pytest.fixture
def connection() -> Iterator[Any]:
    """Django's connection itself, open and in autocommit."""
    wrapper: Any = connections["default"]
    wrapper.ensure_connection()
    yield wrapper
    wrapper.close()


def taken(connection: Any) -> bool:
    """Tell whether the short way is taken."""
    return direct.rows(connection, ONE, {"x": 1}) == [(1, 2)]


def test_every_sort_of_value_arrives_and_nothing_breaks_out_of_its_quotes(connection: Any) -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    text = "ü \\ ' '' %(x)s $1 %% \n; DROP TABLE gnl_django_job --"
    row = (text, -3, 0.25, True, True, None)
    values = {"a": text, "b": -3, "c": 0.25, "d": True, "e": moment, "f": None}
    asked = (
        "SELECT %(a)s::text, %(b)s::int, %(c)s::float8, %(d)s::bool, "
        "%(e)s::timestamptz = '2026-01-02 03:04:05.678901+00', %(f)s::text"
    )
    assert direct.rows(connection, asked, values) == [row]
    with connection.cursor() as cursor:
        cursor.execute("SET standard_conforming_strings = off")
    assert direct.rows(connection, asked, values) == [row]


def test_a_plan_is_kept_in_the_session_only_where_it_is_asked_for(connection: Any) -> None:
    kept = "SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'gnl%'"

    def plans() -> int:
        return int(connection.connection.execute(kept).fetchone()[0])

    before = plans()
    assert taken(connection)
    assert plans() == before
    for _ in range(2):
        assert direct.rows(connection, ONE, {"x": 1}, prepare=True) == [(1, 2)]
    assert plans() == before + 1
    with transaction.atomic():
        Job.objects.exists()
        assert direct.rows(connection, ONE + " AS other", {"x": 1}, prepare=True) == [(1, 2)]
    assert plans() == before + 1


def test_it_is_part_of_the_callers_transaction_once_that_has_begun(connection: Any) -> None:
    with transaction.atomic():
        assert not taken(connection)  # psycopg sends its BEGIN with a cursor's first statement
        Job.objects.exists()
        assert taken(connection)
        with pytest.raises(IntegrityError), transaction.atomic():
            direct.rows(
                connection,
                "INSERT INTO gnl_django_queuestate (queue, org, paused_by, pause_reason) "
                "VALUES (%(x)s, '', '', '') RETURNING id",
                {"x": "q"},
            )
        assert taken(connection)
        transaction.set_rollback(True)
        with pytest.raises(TransactionManagementError):
            taken(connection)


@pytest.mark.parametrize(
    "watcher", ["log", "wrapper", "cursor", "class", "patch", "factory", "pipeline", "apps"]
)
def test_whoever_watches_sees_every_statement(
    connection: Any, watcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert taken(connection)
    execute: Any = utils.CursorWrapper.execute
    if watcher == "log":
        monkeypatch.setattr(connection, "force_debug_cursor", True)
    elif watcher == "wrapper":
        monkeypatch.setattr(connection, "execute_wrappers", [lambda run, *args: run(*args)])
    elif watcher == "cursor":
        monkeypatch.setattr(connection, "cursor", connection.cursor, raising=False)
    elif watcher == "class":
        monkeypatch.setattr(connection, "__class__", type("Mine", (type(connection),), {
            "make_cursor": lambda self, cursor: utils.CursorWrapper(cursor, self),
        }))  # fmt: skip
    elif watcher == "patch":
        monkeypatch.setattr(
            utils.CursorWrapper, "execute", lambda self, *args: execute(self, *args)
        )
    elif watcher == "factory":
        traced = type("Traced", (psycopg.ClientCursor,), {})
        monkeypatch.setattr(connection.connection, "cursor_factory", traced)
    elif watcher == "apps":
        monkeypatch.setattr(apps, "ready", False)
    if watcher == "pipeline":
        with connection.connection.pipeline():
            assert not taken(connection)
    else:
        assert not taken(connection)


def test_it_refuses_what_a_cursor_would_refuse(connection: Any) -> None:
    async def inside() -> None:
        taken(connection)

    coroutine = inside()
    with pytest.raises(SynchronousOnlyOperation):
        asyncio.run(coroutine)
    with pytest.raises(DatabaseError) as caught:
        direct.rows(connection, "SELECT no_such_column", {})
    assert getattr(caught.value.__cause__, "sqlstate", "") == "42703"
    assert taken(connection)


def test_a_lost_connection_is_djangos_error_and_the_next_statement_opens_another(
    connection: Any,
) -> None:
    pid = connection.connection.info.backend_pid
    other = connection.copy()
    with other.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
    other.close()
    with pytest.raises((DatabaseError, InterfaceError)):
        taken(connection)
    connection.close()
    assert taken(connection)
    assert connection.connection.info.backend_pid != pid
