"""Keys: one job per key and org, whoever asks, whenever, and whatever became of the first."""

import threading
from contextlib import suppress
from datetime import timedelta
from hashlib import sha256
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from gnl_django import JobKind, cancel_job, enqueue, enqueue_many
from gnl_django.core.db import now
from gnl_django.models import Job
from tests.conformance.conftest import Aside, Declare, MakeWorker
from tests.conformance.helpers import (
    DEADLINE,
    MOMENT,
    Order,
    columns_of,
    fail,
    job_of,
    state_of,
    statements,
)
from tests.support import vendor

pytestmark = pytest.mark.django_db

ROUNDS = 50


@pytest.mark.row("queue", "C10")
def test_orgs_that_differ_in_case_have_lanes_and_keys_of_their_own(
    declare: Declare, make_worker: MakeWorker
) -> None:
    kind = declare("t.plain")
    ids = [kind.enqueue(org=org, key="k") for org in ("a", "A")]
    assert len(set(ids)) == 2
    assert [job_of(job_id).org for job_id in ids] == ["a", "A"]
    # Two lanes: with two slots each gives one, however many jobs the other has.
    more = [kind.enqueue(org="a") for _ in range(3)]
    assert make_worker(concurrency=2).run_once() == 2
    assert [state_of(job_id) for job_id in (*ids, *more)] == ["succeeded"] * 2 + ["ready"] * 3


@pytest.mark.django_db(transaction=True)
@pytest.mark.row("queue", "C11")
@pytest.mark.parametrize(
    "state", ["scheduled", "ready", "running", "succeeded", "dead", "canceled"]
)
def test_a_key_answers_the_id_of_its_job_in_whatever_state(
    declare: Declare, make_worker: MakeWorker, state: str
) -> None:
    again: list[int] = []

    def handle(payload: Any) -> None:
        if state == "running":
            again.append(enqueue("t.keyed", "other", key="k"))
        if state == "dead":
            fail(payload)

    kind = declare("t.keyed", handle, max_attempts=1)
    job_id = kind.enqueue("first", key="k", delay=60 if state == "scheduled" else None)
    if state == "canceled":
        cancel_job(job_id)
    elif state in {"running", "succeeded", "dead"}:
        make_worker().run_once()
    if state != "running":
        assert state_of(job_id) == state
    before = columns_of(job_id)
    again.append(kind.enqueue("other", key="k", queue="low", priority=9, org=None))
    assert set(again) == {job_id}
    assert columns_of(job_id) == before
    assert before["payload"] == "first"
    assert Job.objects.count() == 1


@pytest.mark.row("queue", "C11")
def test_the_payload_is_judged_although_the_key_is_known(declare: Declare) -> None:
    def ship(payload: Order) -> None:
        """Never called."""

    kind = declare("t.ship", ship)
    kind.enqueue({"number": 1}, key="k")
    with pytest.raises(Exception, match="/number"):
        kind.enqueue({}, key="k")


@pytest.mark.row("queue", "C11")
def test_a_key_is_known_across_kinds_and_queues(declare: Declare) -> None:
    first = declare("t.one").enqueue(key="k")
    assert declare("t.two", queue="low").enqueue(key="k") == first


@pytest.mark.row("queue", "C12")
def test_each_org_has_its_own_keys_and_the_ownerless_too(kind: JobKind[Any]) -> None:
    ids = [kind.enqueue(key="k", org=org) for org in ("a", "b", None)]
    assert len(set(ids)) == 3
    assert [kind.enqueue(key="k", org=org) for org in ("a", "b", None)] == ids


@pytest.mark.row("queue", "C12")
def test_the_unique_form_of_a_key_is_the_hash_of_org_nul_key(kind: JobKind[Any]) -> None:
    owned, ownerless = job_of(kind.enqueue(key="kü", org="b")), job_of(kind.enqueue(key="kü"))
    assert (owned.key, owned.dedup) == ("kü", sha256("b\0kü".encode()).hexdigest())
    assert (ownerless.key, ownerless.dedup) == ("kü", sha256("\0kü".encode()).hexdigest())


@pytest.mark.row("queue", "C14")
@pytest.mark.parametrize("many", [False, True], ids=["single", "many"])
def test_keys_that_differ_in_case_space_or_accent_are_different_keys(
    kind: JobKind[Any], many: bool
) -> None:
    keys = ["a", "A", "a ", " a", "ä", "a\u0308", "ß", "ss"]
    for _ in range(2):
        if many:
            ids = enqueue_many([{"kind": "t.plain", "options": {"key": key}} for key in keys])
        else:
            ids = [kind.enqueue(key=key) for key in keys]
        assert len(set(ids)) == len(keys)
    assert [job_of(job_id).key for job_id in ids] == keys
    assert Job.objects.count() == len(keys)


@pytest.mark.django_db(transaction=True)
@pytest.mark.row("queue", "C15")
@pytest.mark.parametrize("many", [False, True], ids=["single", "many"])
def test_two_connections_with_the_same_key_at_once_get_the_same_job(
    kind: JobKind[Any], aside: Aside, many: bool
) -> None:
    start = threading.Barrier(2, timeout=DEADLINE)

    def rounds() -> list[int]:
        ids = []
        for number in range(ROUNDS):
            start.wait()
            if many:
                options = {"key": f"k{number}"}
                ids += enqueue_many([{"kind": "t.plain", "options": options}, {"kind": "t.plain"}])
                ids.pop()
            else:
                ids.append(kind.enqueue(number, key=f"k{number}"))
        return ids

    first, second = aside(rounds), aside(rounds)
    ids = first.result(60)
    assert second.result(60) == ids
    assert len(set(ids)) == ROUNDS
    assert Job.objects.filter(key__isnull=False).count() == ROUNDS


@pytest.mark.django_db(transaction=True)
@pytest.mark.row("queue", "C16")
@pytest.mark.parametrize("many", [False, True], ids=["single", "many"])
@pytest.mark.parametrize("commits", [False, True], ids=["rolls back", "commits"])
def test_the_second_of_two_callers_waits_for_the_first_to_end(
    kind: JobKind[Any], aside: Aside, commits: bool, many: bool
) -> None:
    inserted, free = threading.Event(), threading.Event()

    def first() -> int:
        with transaction.atomic():
            job_id = kind.enqueue("first", key="k")
            inserted.set()
            assert free.wait(DEADLINE)
            transaction.set_rollback(not commits)
        return job_id

    def second() -> int:
        if many:
            options = {"key": "k"}
            return enqueue_many([{"kind": "t.plain", "payload": "second", "options": options}])[0]
        return kind.enqueue("second", key="k")

    one = aside(first)
    assert inserted.wait(DEADLINE)
    two = aside(second)
    assert not two.ends_within(MOMENT)
    free.set()
    ids = one.result(), two.result()
    job = Job.objects.get()
    assert job.id == ids[1]
    assert not commits or ids[0] == ids[1]
    assert job.payload == ("first" if commits else "second")


@pytest.mark.postgres("SQLite has one writer: whoever writes waits for an open transaction")
@pytest.mark.mysql
@pytest.mark.django_db(transaction=True)
def test_a_job_without_key_waits_for_no_open_transaction(kind: JobKind[Any], aside: Aside) -> None:
    with transaction.atomic():
        kind.enqueue(key="k", org="a")
        other = aside(lambda: (kind.enqueue(org="a"), kind.enqueue(key="other", org="a")))
        assert len(set(other.result())) == 2


@pytest.mark.row("queue", "C17")
def test_a_key_is_free_again_once_its_job_is_deleted(kind: JobKind[Any]) -> None:
    first = kind.enqueue("first", key="k")
    Job.objects.filter(id=first).delete()
    second = kind.enqueue("second", key="k")
    assert second > first  # ids are never used twice
    assert job_of(second).payload == "second"


@pytest.mark.django_db(transaction=True)
@pytest.mark.row("queue", "C18")
@pytest.mark.parametrize("many", [False, True], ids=["single", "many"])
def test_a_caller_whose_snapshot_is_older_than_the_key_gets_the_id_or_a_serialization_error(
    kind: JobKind[Any], aside: Aside, many: bool
) -> None:
    with connection.cursor() as cursor, transaction.atomic():
        if vendor() == "postgresql":
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        elif vendor() == "mysql":
            # Django has begun the transaction already: ask for the next one, and begin it.
            cursor.execute("COMMIT")
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("BEGIN")
        Job.objects.count()  # the snapshot is taken here
        if vendor() == "sqlite":
            stored = kind.enqueue("first", key="k")  # nobody else can write meanwhile
        else:
            stored = aside(lambda: kind.enqueue("first", key="k")).result()
        found = None
        with suppress(OperationalError), transaction.atomic():
            if many:
                options = {"key": "k"}
                found = enqueue_many([{"kind": "t.plain", "options": options}])[0]
            else:
                found = kind.enqueue("second", key="k")
    assert found in ({None, stored} if vendor() == "postgresql" else {stored})
    assert Job.objects.get().payload == "first"


@pytest.mark.django_db(transaction=True)
def test_a_keyed_job_takes_one_statement_and_a_known_key_writes_nothing(
    kind: JobKind[Any],
) -> None:
    with statements() as fresh:
        kind.enqueue(key="k", run_at=now("default") + timedelta(hours=1))
    with statements() as known:
        kind.enqueue(key="k")
    inserts = [text for text in fresh if text.startswith("INSERT")]
    assert len(inserts) == 1
    assert len(fresh) <= 3
    if vendor() == "mysql":
        assert [text.split()[0] for text in known] == ["SELECT"]
    else:
        assert [text.split()[0] for text in known] == ["INSERT", "SELECT"]
