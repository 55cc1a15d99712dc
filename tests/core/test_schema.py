"""Indexes and constraints: each database's own form, and no illegal row on any of them."""

from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection, models, transaction
from django.db.utils import DatabaseError, IntegrityError

from gnl_django.core.schema import PartialIndex
from gnl_django.models import Job, QueueState
from tests.support import vendor

pytestmark = pytest.mark.django_db

NOON = datetime(2031, 5, 7, 12, tzinfo=UTC)


def constraints(table: str) -> dict[str, Any]:
    with connection.cursor() as cursor:
        return connection.introspection.get_constraints(cursor, table)


INDEXES: dict[str, tuple[list[str], list[str] | None]] = {
    "gnl_job_ready": (["queue", "org", "priority", "id", "kind", "run_at"], ["state"]),
    "gnl_job_due": (["run_at", "id"], ["state"]),
    "gnl_job_sched_lane": (["queue", "org"], None),
    "gnl_job_lease": (["lease_expires_at", "id"], ["state"]),
    "gnl_job_org": (["org", "id"], []),
    "gnl_job_dead": (["finished_at", "id", "error_key"], ["state"]),
}


@pytest.mark.parametrize("name", INDEXES)
def test_an_index_has_the_columns_of_its_vendor(name: str) -> None:
    columns, first_on_mysql = INDEXES[name]
    found = constraints("gnl_django_job").get(name)
    if vendor() != "mysql":
        assert found is not None
        assert found["columns"] == columns
    elif first_on_mysql is None:
        assert found is None
    else:
        assert found is not None
        assert found["columns"] == first_on_mysql + columns


def test_priority_descends_in_the_ready_index() -> None:
    found = constraints("gnl_django_job")["gnl_job_ready"]
    orders = dict(zip(found["columns"], found.get("orders") or [], strict=False))
    if vendor() == "mysql":
        with connection.cursor() as cursor:
            cursor.execute("SHOW CREATE TABLE gnl_django_job")
            assert "`priority` DESC" in cursor.fetchone()[1]
    else:
        assert orders["priority"] == "DESC"


@pytest.mark.postgres("MySQL and MariaDB have no partial indexes")
@pytest.mark.sqlite
@pytest.mark.parametrize("name", [name for name in INDEXES if name != "gnl_job_org"])
def test_a_partial_index_holds_the_rows_of_one_state(name: str) -> None:
    state = {"gnl_job_ready": "ready", "gnl_job_lease": "running", "gnl_job_dead": "dead"}.get(
        name, "scheduled"
    )
    with connection.cursor() as cursor:
        if vendor() == "sqlite":
            cursor.execute("SELECT sql FROM sqlite_master WHERE name = %s", [name])
        else:
            cursor.execute("SELECT indexdef FROM pg_indexes WHERE indexname = %s", [name])
        text = cursor.fetchone()[0]
    where = text.split(" WHERE ")[1]
    assert f"'{state}'" in where
    assert where.count("'") == 2


def test_a_partial_index_can_be_made_again_from_its_migration() -> None:
    index = next(i for i in Job._meta.indexes if i.name == "gnl_job_dead")
    path, args, kwargs = index.deconstruct()
    assert path == "gnl_django.core.schema.PartialIndex"
    again = PartialIndex(*args, **kwargs)
    assert again == index
    assert (again.where, again.mysql) == (index.where, index.mysql)  # type: ignore[attr-defined]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("mysql", [None, ["queue", "changed_at"]], ids=["none", "own columns"])
def test_a_partial_index_can_be_added_and_removed(mysql: list[str] | None) -> None:
    index = PartialIndex(
        name="gnl_test_partial",
        fields=["changed_at"],
        where=models.Q(queue="q"),
        mysql=mysql,
    )
    with connection.schema_editor() as editor:
        editor.add_index(QueueState, index)
    try:
        found = constraints("gnl_django_queuestate").get("gnl_test_partial")
        if vendor() != "mysql":
            assert found is not None
            assert found["columns"] == ["changed_at"]
        else:
            assert (found and found["columns"]) == mysql
    finally:
        with connection.schema_editor() as editor:
            editor.remove_index(QueueState, index)
    assert "gnl_test_partial" not in constraints("gnl_django_queuestate")


def store(**columns: Any) -> Job:
    """Store a row as no code of ours would, past all checks but the database's."""
    legal: dict[str, Any] = {"kind": "k", "state": "ready", "run_at": NOON, "enqueued_at": NOON}
    return Job.objects.create(**{**legal, **columns})


TOKEN = {"claim_token": "t", "lease_expires_at": NOON}


@pytest.mark.parametrize(
    "columns",
    [
        {"state": "scheduled"},
        {"state": "running", **TOKEN},
        {"state": "succeeded", "finished_at": NOON},
        {"state": "dead", "finished_at": NOON},
        {"state": "canceled", "finished_at": NOON},
        {"priority": -100},
        {"priority": 100},
        {"attempt": 5, "max_attempts": 1},
    ],
)
def test_a_legal_row_is_stored(columns: dict[str, Any]) -> None:
    store(**columns)


@pytest.mark.parametrize(
    "columns",
    [
        {"state": "failed"},
        {"state": ""},
        {"state": "READY"},
        {"state": "running"},
        {"state": "running", "claim_token": "t"},
        {"state": "running", "lease_expires_at": NOON},
        {"state": "running", **TOKEN, "finished_at": NOON},
        {"claim_token": "t"},
        {"lease_expires_at": NOON},
        {"state": "succeeded", "finished_at": NOON, "claim_token": "t"},
        {"state": "dead", "finished_at": NOON, "lease_expires_at": NOON},
        {"finished_at": NOON},
        {"state": "scheduled", "finished_at": NOON},
        {"state": "succeeded"},
        {"state": "dead"},
        {"state": "canceled"},
        {"attempt": -1},
        {"max_attempts": 0},
        {"priority": 101},
        {"priority": -101},
    ],
)
def test_an_illegal_row_cannot_be_stored(columns: dict[str, Any]) -> None:
    with pytest.raises(DatabaseError), transaction.atomic():
        store(**columns)
    job = store()
    with pytest.raises(DatabaseError), transaction.atomic():
        Job.objects.filter(id=job.id).update(**columns)


def test_a_unique_form_of_a_key_is_stored_once_and_its_absence_as_often_as_need_be() -> None:
    store()
    store()
    store(dedup="a")
    store(dedup="A")
    with pytest.raises(IntegrityError), transaction.atomic():
        store(dedup="a")


def test_a_key_is_looked_up_by_its_index() -> None:
    store(dedup="a")
    query = Job.objects.filter(dedup__in=["a", "b"]).values("id")
    text = query.explain()
    if vendor() == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL enable_seqscan = off")
        text = query.explain()
    assert "gnl_job_dedup" in text
