"""What an error means, what a transaction of ours is, and what is tried again."""

import sqlite3
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.db import (
    DatabaseError,
    IntegrityError,
    OperationalError,
    connection,
    connections,
    transaction,
)

from gnl_django.core import db
from gnl_django.core.db import Fault, fault_of, own_transaction, reconnect, retrying
from gnl_django.models import QueueState
from tests.core.test_fields import NOON
from tests.support import vendor


def postgres(sqlstate: str) -> BaseException:
    return psycopg.errors.lookup(sqlstate)("text")


def mysql(code: object) -> BaseException:
    errors = pytest.importorskip("MySQLdb", reason="mysqlclient is an extra").OperationalError
    return errors(code, "text")  # type: ignore[no-any-return]


def sqlite(code: int) -> BaseException:
    error = sqlite3.OperationalError("text")
    error.sqlite_errorcode = code
    return error


TABLE: list[tuple[Callable[[Any], BaseException], list[Any], Fault]] = [
    (postgres, ["40001", "40P01", "55P03", "57014"], Fault.TRANSIENT),
    (mysql, [1213, 1205, 3024], Fault.TRANSIENT),
    (sqlite, [5, 5 | 1 << 8, 5 | 2 << 8], Fault.TRANSIENT),
    (postgres, ["08000", "08003", "08006", "08P01"], Fault.CONNECTION),
    (postgres, ["57P01", "57P02", "57P03", "25P03"], Fault.CONNECTION),
    (mysql, [2006, 2013, 1053, 4031, 2002, 2003], Fault.CONNECTION),
    (postgres, ["53100", "25006"], Fault.UNAVAILABLE),
    (mysql, [1114, 1290], Fault.UNAVAILABLE),
    (sqlite, [13, 8], Fault.UNAVAILABLE),
    (postgres, ["22001", "22003", "22021", "23505", "23502", "23514"], Fault.DATA),
    (mysql, [1406, 1062], Fault.DATA),
    (sqlite, [19, 19 | 8 << 8], Fault.DATA),
    (postgres, ["42P01", "42601", "42501"], Fault.OTHER),
    (mysql, [1146, 1064, 1142], Fault.OTHER),
    (sqlite, [1, 26], Fault.OTHER),
]


@pytest.mark.parametrize(
    ("make", "code", "fault"),
    [(make, code, fault) for make, codes, fault in TABLE for code in codes],
)
def test_an_error_is_judged_by_its_number(make: Any, code: Any, fault: Fault) -> None:
    assert fault_of(make(code)) is fault


@pytest.mark.parametrize("wrapper", [OperationalError, IntegrityError, DatabaseError])
def test_djangos_class_plays_no_part(wrapper: type[Exception]) -> None:
    error = wrapper("text")
    error.__cause__ = postgres("25006")  # arrives as InternalError
    assert fault_of(error) is Fault.UNAVAILABLE


def test_an_error_on_the_way_is_found_behind_others() -> None:
    error = RuntimeError("outer")
    error.__context__ = OperationalError("middle")
    error.__context__.__cause__ = sqlite(5)
    assert fault_of(error) is Fault.TRANSIENT


def test_a_connection_that_is_gone_has_no_number() -> None:
    assert fault_of(psycopg.OperationalError("the connection is closed")) is Fault.CONNECTION
    assert fault_of(mysql(0)) is Fault.CONNECTION


@pytest.mark.parametrize("error", [ValueError("no"), OperationalError("text"), KeyboardInterrupt()])
def test_an_error_of_nobodys_database_is_another(error: BaseException) -> None:
    assert fault_of(error) is Fault.OTHER


@pytest.mark.django_db
def test_a_real_refusal_of_the_data_is_told_as_such() -> None:
    QueueState.objects.create(queue="q", org="a", changed_at=NOON)
    with pytest.raises(IntegrityError) as error, transaction.atomic():
        QueueState.objects.create(queue="q", org="a", changed_at=NOON)
    assert fault_of(error.value) is Fault.DATA
    with pytest.raises(DatabaseError) as unknown, transaction.atomic():
        connection.cursor().execute("SELECT * FROM nowhere")
    assert fault_of(unknown.value) is Fault.OTHER


class Work:
    """Raises the errors it was made with, one a call, and then succeeds."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("failures", [0, 1, 2])
def test_a_transient_error_is_tried_again(failures: int) -> None:
    work = Work(*[postgres("40P01")] * failures)
    assert retrying(connection, work) == "done"
    assert work.calls == failures + 1


@pytest.mark.django_db(transaction=True)
def test_the_third_transient_error_is_the_callers() -> None:
    work = Work(*[postgres("40001")] * 3)
    with pytest.raises(psycopg.errors.SerializationFailure):
        retrying(connection, work)
    assert work.calls == 3


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("error", [postgres("23505"), postgres("57P01"), sqlite(13), ValueError()])
def test_what_is_not_transient_is_not_tried_again(error: BaseException) -> None:
    work = Work(error)
    with pytest.raises(type(error)):
        retrying(connection, work)
    assert work.calls == 1


@pytest.mark.django_db
def test_inside_the_callers_transaction_nothing_is_tried_again() -> None:
    work = Work(postgres("40P01"))
    with pytest.raises(psycopg.errors.DeadlockDetected):
        retrying(connection, work)
    assert work.calls == 1


def as_django_raises(error: BaseException) -> DatabaseError:
    raised = OperationalError("text")
    raised.__cause__ = error
    return raised


@pytest.mark.django_db(transaction=True)
def test_a_single_statement_is_tried_again_in_a_transaction_of_ours() -> None:
    states: list[bool] = []
    work = Work(*[as_django_raises(postgres("40001"))] * 3)

    def one() -> str:
        states.append(connection.in_atomic_block)
        return work()

    assert db.alone(connection, one) == "done"
    assert states == [False, True, True, True]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("error", [postgres("23505"), postgres("57P01"), sqlite(13)])
def test_a_single_statement_that_fails_otherwise_fails(error: BaseException) -> None:
    work = Work(as_django_raises(error))
    with pytest.raises(OperationalError):
        db.alone(connection, work)
    assert work.calls == 1


@pytest.mark.django_db
def test_a_single_statement_inside_the_callers_transaction_is_the_callers() -> None:
    work = Work(as_django_raises(postgres("40001")))
    with pytest.raises(OperationalError):
        db.alone(connection, work)
    assert work.calls == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("strict", [False, True])
def test_a_loops_statement_is_alone_unless_the_session_is_strict(
    monkeypatch: pytest.MonkeyPatch, strict: bool
) -> None:
    monkeypatch.setattr(db, "strict_isolation", lambda connection: strict)
    assert db.read_committed(connection, lambda: connection.in_atomic_block) is strict
    with transaction.atomic():
        savepoints = len(connection.savepoint_ids)
        inside = db.read_committed(connection, lambda: len(connection.savepoint_ids))
    assert inside == savepoints


@pytest.mark.django_db(transaction=True)
def test_a_table_of_ours_that_is_missing_is_told_from_anothers() -> None:
    for table, ours in (("gnl_django_nothing", True), ("nowhere", False)):
        with pytest.raises(DatabaseError) as error:
            connection.cursor().execute(f"SELECT 1 FROM {table}")
        assert db.missing_table(error.value) is ours
    assert not db.missing_table(OperationalError("gnl_django_job is on fire"))


@pytest.mark.django_db(transaction=True)
def test_a_transaction_of_ours_commits_or_rolls_back() -> None:
    with own_transaction(connection):
        QueueState.objects.create(queue="kept", changed_at=NOON)
        assert connection.in_atomic_block
    with pytest.raises(IntegrityError), own_transaction(connection):
        QueueState.objects.bulk_create(
            QueueState(queue=name, changed_at=NOON) for name in ("lost", "kept")
        )
    assert not connection.in_atomic_block
    assert list(QueueState.objects.values_list("queue", flat=True)) == ["kept"]


@pytest.mark.django_db(transaction=True)
def test_inside_the_callers_it_is_a_savepoint() -> None:
    with transaction.atomic():
        QueueState.objects.create(queue="outer", changed_at=NOON)
        with pytest.raises(IntegrityError), own_transaction(connection):
            QueueState.objects.bulk_create(
                QueueState(queue=name, changed_at=NOON) for name in ("inner", "outer")
            )
        with own_transaction(connection):
            QueueState.objects.create(queue="second", changed_at=NOON)
    found = QueueState.objects.order_by("queue").values_list("queue", flat=True)
    assert list(found) == ["outer", "second"]


ISOLATION = {
    "postgresql": (
        "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {}",
        "SHOW transaction_isolation",
    ),
    "mysql": ("SET SESSION TRANSACTION ISOLATION LEVEL {}", None),
}


@pytest.mark.postgres("SQLite is always serializable")
@pytest.mark.mysql
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("level", ["SERIALIZABLE", "REPEATABLE READ", "READ COMMITTED"])
def test_a_transaction_of_ours_is_read_committed_whatever_the_sessions_default(level: str) -> None:
    change, _ = ISOLATION[vendor()]
    connection.close()
    with connection.cursor() as cursor:
        cursor.execute(change.format(level))
    try:
        assert db.strict_isolation(connection) is (level != "READ COMMITTED")
        with own_transaction(connection):
            assert QueueState.objects.count() == 0
            other = connections.create_connection("default")
            try:
                with other.cursor() as cursor:
                    cursor.execute(
                        "INSERT INTO gnl_django_queuestate (queue, org, paused_by, pause_reason, "
                        "changed_at) VALUES ('q', '', '', '', '2031-05-07 12:00:00')"
                    )
            finally:
                other.close()
            # A snapshot of the transaction's start would not see it.
            assert QueueState.objects.count() == 1
    finally:
        connection.close()


@pytest.mark.sqlite("has one writer, who says so when he begins")
@pytest.mark.django_db(transaction=True)
def test_a_transaction_of_ours_takes_the_write_lock_when_it_begins() -> None:
    wrapper: Any = connection
    wrapper.ensure_connection()
    before, wrapper.transaction_mode = wrapper.transaction_mode, "DEFERRED"
    other = sqlite3.connect(str(connection.settings_dict["NAME"]), timeout=0)
    try:
        with own_transaction(connection), pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
        assert wrapper.transaction_mode == "DEFERRED"
        other.execute("PRAGMA busy_timeout = 30000")
        other.execute("BEGIN IMMEDIATE")
    finally:
        other.close()
        wrapper.transaction_mode = before


@pytest.mark.django_db(transaction=True)
def test_reconnect_drops_the_connection_and_the_next_statement_opens_another() -> None:
    connection.ensure_connection()
    before = connection.connection
    reconnect("default")
    assert connection.connection is None
    QueueState.objects.count()
    assert connection.connection not in {None, before}


@pytest.mark.django_db(transaction=True)
def test_reconnect_leaves_the_callers_transaction_alone() -> None:
    with transaction.atomic():
        before = connection.connection
        reconnect("default")
        assert connection.connection is before
        assert connection.is_usable()
