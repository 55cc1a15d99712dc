"""A session whose default is REPEATABLE READ or SERIALIZABLE: ours stay READ COMMITTED (C55)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import OperationalError, connection, connections, transaction

from gnl_django import JobKind, cancel_job, enqueue, enqueue_many, retry_job, retry_jobs
from gnl_django.core import db, fleet
from gnl_django.core.fleet import Numbers
from gnl_django.models import Job, Process
from gnl_django.queue.options import NewJob
from gnl_django.queue.store import store_for
from tests.conformance.conftest import (
    Aside,
    Declare,
    FailPoint,
    MakeWorker,
    aside,
    declare,
    failpoint,
    make_worker,
)
from tests.conformance.helpers import fail, row_held, running, state_of
from tests.support import vendor

__all__ = ["aside", "declare", "failpoint", "make_worker"]

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.postgres("SQLite is always serializable"),
    pytest.mark.mysql("SQLite is always serializable"),
    pytest.mark.row("queue", "C55"),
]

#: What of ours writes or locks; plain reads may be of any level.
WRITES = ("UPDATE", "INSERT", "DELETE")
ALONE = "one statement"


def options(level: str, how: str) -> dict[str, Any]:
    """Return Django's OPTIONS by which connections begin at `level`."""
    if vendor() == "postgresql":
        if how == "option":
            return {"isolation_level": {"repeatable read": 3, "serializable": 4}[level]}
        return {"options": f"-c default_transaction_isolation={level.replace(' ', chr(92) + ' ')}"}
    if how == "option":
        return {"isolation_level": level}
    command = f"SET SESSION TRANSACTION ISOLATION LEVEL {level}"
    return {"isolation_level": None, "init_command": command}


@pytest.fixture(
    params=["repeatable read/option", "repeatable read/session", "serializable/session"]
)
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Have every connection of this process begin at this level.

    By Django's option, which on PostgreSQL rides on each BEGIN, or as the session's own default.
    """
    level, _, how = request.param.partition("/")
    connections.close_all()
    for name, value in options(level, how).items():
        monkeypatch.setitem(connection.settings_dict["OPTIONS"], name, value)
    yield level
    connections.close_all()


@contextmanager
def elsewhere() -> Iterator[Any]:
    """Hand out a connection of nobody's, which waits for no lock longer than a second."""
    other = connections.create_connection("default")
    try:
        with other.cursor() as cursor:
            if vendor() == "mysql":
                cursor.execute("SET SESSION innodb_lock_wait_timeout = 1")
            yield cursor
    finally:
        other.close()


def level_of(wrapper: Any, other: Any) -> str:
    """Return the isolation level of the transaction that `wrapper` has open."""
    if not wrapper.in_atomic_block:
        return ALONE
    with wrapper.connection.cursor() as cursor:
        if vendor() == "postgresql":
            cursor.execute("SHOW transaction_isolation")
            return str(cursor.fetchone()[0])
        # MariaDB does not tell. Whoever sees what another commits meanwhile is read committed.
        count = "SELECT count(*) FROM auth_group"
        cursor.execute(count)
        before = cursor.fetchone()[0]
        try:
            other.execute("INSERT INTO auth_group (name) VALUES (uuid())")
        except OperationalError:
            return "serializable"  # it has locked what it has read
        cursor.execute(count)
        return "read committed" if cursor.fetchone()[0] > before else "repeatable read"


@contextmanager
def levels_of_writes() -> Iterator[dict[str, set[str]]]:
    """Note the isolation level of each statement of ours that writes, by its first words."""
    seen: dict[str, set[str]] = {}

    def look(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        answer = execute(sql, params, many, context)
        if "gnl_django" in sql and any(word in sql for word in WRITES):
            text = " ".join(sql.split())[:90]
            seen.setdefault(text, set()).add(level_of(context["connection"], other))
        return answer

    with elsewhere() as other, connection.execute_wrapper(look):
        yield seen


def test_the_session_is_strict_and_ours_know_it(level: str) -> None:
    with elsewhere() as other, transaction.atomic():
        assert level_of(connection, other) == level
    assert db.strict_isolation(connection)
    with elsewhere() as other, db.own_transaction(connection):
        assert level_of(connection, other) == "read committed"


def test_every_write_of_a_worker_is_read_committed(
    level: str, declare: Declare, make_worker: MakeWorker
) -> None:
    declare("t.plain").enqueue()
    declare("t.fails", fail, retry_delay=0, max_attempts=2).enqueue()
    declare("t.later").enqueue(delay=0.001)
    expired = enqueue("t.plain")
    Job.objects.filter(id=expired).update(priority=-1)
    token = running(expired)
    Job.objects.filter(claim_token=token).update(lease_expires_at=db.now("default"))
    with levels_of_writes() as seen:
        assert make_worker().run_until_idle() == 5
        process = fleet.enter("default", "me", "worker", ["default"], Numbers())
        assert not fleet.beat("default", process, Numbers(active=1)).gone
        assert fleet.leave("default", process, Numbers())
    assert set(Job.objects.values_list("state", flat=True)) == {"succeeded", "dead"}
    assert set.union(*seen.values()) <= {"read committed", ALONE}, seen
    alone = [text for text, found in seen.items() if ALONE in found]
    assert all(text.startswith("INSERT INTO gnl_django_process") for text in alone), alone
    assert len(seen) >= 5
    assert Process.objects.get().stopped_at is not None


def test_the_calls_of_a_project_work(level: str, declare: Declare, make_worker: MakeWorker) -> None:
    kind = declare("t.fails", fail, max_attempts=1)
    with transaction.atomic():
        job_id = kind.enqueue(key="once")
        assert kind.enqueue(key="once") == job_id
        kind.enqueue_many([1, 2], org="a")
    assert kind.enqueue(key="once") == job_id
    assert enqueue(kind, max_depth=3, org="a") > job_id
    worker = make_worker()
    assert worker.run_until_idle() == 4
    assert retry_job(job_id) == job_id
    assert retry_jobs(Job.objects.filter(state="dead")).changed == 3
    assert cancel_job(job_id)
    assert state_of(job_id) == "canceled"


def test_an_enqueue_waits_for_no_claim_on_an_empty_or_a_locked_queue(
    level: str,
    declare: Declare,
    make_worker: MakeWorker,
    failpoint: FailPoint,
    aside: Aside,
) -> None:
    kind = declare("t.plain")
    given: list[int] = []

    def meanwhile() -> None:
        # The claim's transaction is open: before and behind its rows there must be room.
        number = len(given)
        many = [NewJob(kind, number, org=org) for org in ("a", "m", "z")]
        given.append(aside(lambda: kind.enqueue(number, org="m", priority=1)).result())
        given.extend(aside(lambda: enqueue_many(many)).result())

    first = kind.enqueue(0, org="m")
    point = "claim.updated" if vendor() == "postgresql" else "claim.selected"
    worker = make_worker(concurrency=1)
    with row_held(first):
        failpoint(point, meanwhile)
        worker.run_once()  # the ring has a lane, and its one row is held by somebody else
    assert len(given) >= 4
    failpoint(point, lambda: None)
    assert worker.run_until_idle() >= len(given)
    assert set(Job.objects.values_list("state", flat=True)) == {"succeeded"}


def test_a_conflict_of_a_single_statement_never_reaches_the_caller(
    level: str, declare: Declare, aside: Aside, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = declare("t.plain")
    job_id = kind.enqueue()
    for act in (lambda: cancel_job(job_id), lambda: retry_job(job_id)):
        with row_held(job_id):  # which is changed there: the statement's snapshot is then too old
            call = aside(act)
            assert not call.ends_within(0.2)
            _commit_instead(monkeypatch)
        assert call.result()
    _collide(kind, aside)


def _commit_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `row_held` commit: only then has the other statement's snapshot grown old."""
    monkeypatch.setattr(transaction, "set_rollback", lambda rollback, using=None: None)


def _collide(kind: JobKind[Any], aside: Aside) -> None:
    with transaction.atomic():
        stored = kind.enqueue(key="same")
        call = aside(lambda: kind.enqueue(key="same"))
        assert not call.ends_within(0.2)
    assert call.result() == stored


def test_what_happens_inside_the_callers_transaction_is_the_callers(
    level: str, declare: Declare, aside: Aside
) -> None:
    if vendor() == "mysql":  # a statement that writes reads the newest there, at any level
        return
    kind = declare("t.plain")
    job_id = kind.enqueue()

    @transaction.atomic
    def too_late() -> None:
        assert Job.objects.count() == 1  # the snapshot
        aside(lambda: Job.objects.update(note="newer")).result()
        cancel_job(job_id)

    with pytest.raises(OperationalError, match="could not serialize"):
        too_late()
    assert state_of(job_id) == "ready"


def test_a_keyed_enqueue_in_an_old_snapshot_answers_or_says_that_it_is_old(
    level: str, declare: Declare, aside: Aside
) -> None:
    kind = declare("t.plain")
    store = store_for("default")
    with transaction.atomic():
        assert Job.objects.count() == 0  # the snapshot
        if level == "serializable" and vendor() == "mysql":
            return  # there the read has locked what the other would insert
        stored = aside(lambda: kind.enqueue(key="same")).result()
        if vendor() == "mysql":  # an INSERT that meets the key reads the newest
            assert kind.enqueue(key="same") == stored
        else:
            with pytest.raises(OperationalError) as error:
                kind.enqueue(key="same")
            assert db.fault_of(error.value) is db.Fault.TRANSIENT
        transaction.set_rollback(True)
    assert store.find_keys([Job.objects.get().dedup or ""]) == {Job.objects.get().dedup: stored}
