"""enqueue_many: many jobs or none, in call order, as the same calls one by one would store them."""

import threading
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from gnl_django import (
    InvalidPayload,
    JobKind,
    NewJob,
    QueueDepthExceeded,
    UnknownKind,
    enqueue,
    enqueue_many,
)
from gnl_django.core import clock
from gnl_django.models import Job
from tests.conformance.conftest import NOON, Aside, Declare, FailPoint
from tests.conformance.helpers import DEADLINE, Order, columns_of, job_of, statements
from tests.support import vendor

pytestmark = pytest.mark.django_db

#: Jobs like users give, each as (kind, payload, options).
MIXED: list[tuple[str, Any, dict[str, Any]]] = [
    ("t.a", {"n": 1}, {}),
    ("t.a", [1.0, "ü"], {"org": "acme"}),
    ("t.b", None, {"org": "Acme", "queue": "low", "priority": -5}),
    ("t.b", "x", {"key": "k", "meta": {"trace": "1"}}),
    ("t.a", "y", {"key": "k", "org": "acme", "max_attempts": 1}),
    ("t.a", 0, {"delay": 30}),
    ("t.a", 0, {"delay": 0}),
    ("t.b", False, {"run_at": NOON - timedelta(days=1)}),
    ("t.b", "", {"run_at": NOON + timedelta(days=1), "queue": "high"}),
    ("t.a", 'quote " backslash \\ brace {} comma ,', {"key": 'k",{}\\'}),
    ("t.a", "NULL", {"key": "NULL", "org": "NULL"}),
]


@pytest.fixture
def mixed(declare: Declare) -> list[tuple[str, Any, dict[str, Any]]]:
    """Declare the kinds of MIXED and return it."""
    declare("t.a", priority=3)
    declare("t.b", queue="other", max_attempts=2, sensitive=True)
    return MIXED


@pytest.mark.row("queue", "C19")
def test_ids_come_in_call_order_and_increase(kind: JobKind[Any]) -> None:
    ids = kind.enqueue_many(["a", "b", "c"])
    assert ids == sorted(set(ids))
    assert [job_of(job_id).payload for job_id in ids] == ["a", "b", "c"]
    assert all(type(job_id) is int for job_id in ids)


@pytest.mark.row("queue", "C19", "C25")
def test_ids_stay_in_call_order_beyond_one_statements_rows(kind: JobKind[Any]) -> None:
    most = 5_000 if vendor() == "postgresql" else 1_000
    with statements() as texts:
        ids = enqueue_many(NewJob(kind, number) for number in range(most * 2 + 1))
    assert ids == sorted(set(ids))
    assert len([text for text in texts if text.lstrip().startswith("INSERT")]) == 3
    edges = [0, 1, most - 1, most, most + 1, most * 2]
    assert [job_of(ids[at]).payload for at in edges] == edges


@pytest.mark.row("queue", "C20")
def test_a_key_repeated_in_the_call_is_one_job_with_the_first_payload(kind: JobKind[Any]) -> None:
    stored = kind.enqueue("stored", key="old")
    ids = enqueue_many(
        [
            NewJob(kind, 1, key="new"),
            NewJob(kind, 2),
            NewJob(kind, 3, key="old"),
            NewJob(kind, 4, key="new"),
            NewJob(kind, 5, key="new", org="acme"),
            NewJob(kind, 6, key="old"),
        ]
    )
    assert [ids[3], ids[2], ids[5]] == [ids[0], stored, stored]
    assert len({ids[0], ids[1], ids[4], stored}) == 4
    assert ids[0] < ids[1] < ids[4]
    payloads = dict(Job.objects.values_list("id", "payload"))
    assert payloads == {stored: "stored", ids[0]: 1, ids[1]: 2, ids[4]: 5}


@pytest.mark.row("queue", "C20")
def test_a_call_of_known_keys_only_writes_nothing(kind: JobKind[Any]) -> None:
    keys = [NewJob(kind, key=f"k{number}") for number in range(5)]
    first = enqueue_many(keys)
    assert enqueue_many(keys[::-1]) == first[::-1]
    assert Job.objects.count() == 5


@pytest.mark.row("queue", "C21")
@pytest.mark.parametrize(
    ("faulty", "error"),
    [
        (("t.ship", {"lines": []}, {}), InvalidPayload),
        (("t.ship", {"number": 1}, {"org": ""}), ValueError),
        (("t.ship", {"number": 1}, {"priority": True}), TypeError),
        (("t.nobody", {"number": 1}, {}), UnknownKind),
        (("t.ship", {"number": 1}, {"max_depth": 99, "org": "full"}), QueueDepthExceeded),
    ],
)
def test_one_refused_job_of_a_hundred_refuses_them_all(
    declare: Declare, faulty: tuple[str, Any, dict[str, Any]], error: type[Exception]
) -> None:
    def ship(payload: Order) -> None:
        """Never called."""

    kind = declare("t.ship", ship)
    jobs = [
        {"kind": kind, "payload": {"number": number}, "options": {"org": "full"}}
        for number in range(99)
    ]
    kind_name, payload, options = faulty
    jobs.append({"kind": kind_name, "payload": payload, "options": options})
    with pytest.raises(error):
        enqueue_many(jobs)
    assert not Job.objects.exists()


@pytest.mark.row("queue", "C22")
@pytest.mark.parametrize("empty", [[], (), iter([])])
def test_no_jobs_are_no_ids_and_no_statement(empty: Any) -> None:
    with statements() as texts:
        assert enqueue_many(empty) == []
    assert texts == []


@pytest.mark.row("queue", "C23")
@pytest.mark.parametrize("as_mapping", [False, True], ids=["NewJob", "mapping"])
def test_many_at_once_are_stored_as_one_by_one(
    mixed: list[tuple[str, Any, dict[str, Any]]], as_mapping: bool
) -> None:
    with clock.override(NOON):
        singles = [enqueue(kind, payload, **options) for kind, payload, options in mixed]
        expected = [columns_of(job_id) for job_id in singles]
        Job.objects.all().delete()
        if as_mapping:
            names = ("kind", "payload", "options")
            ids = enqueue_many([dict(zip(names, job, strict=True)) for job in mixed])
        else:
            ids = enqueue_many([NewJob(kind, payload, **o) for kind, payload, o in mixed])
    assert [columns_of(job_id) for job_id in ids] == expected


@pytest.mark.parametrize(
    "jobs",
    [
        [{"kind": "t.plain", "colour": "red"}],
        [{"kind": "t.plain", "options": {"colour": "red"}}],
        [{"kind": "t.plain", "options": {"using": "default"}}],
        [{"payload": 1}],
        ["t.plain"],
        [5],
        "t.plain",
        [NewJob("t.plain"), None],
    ],
)
def test_what_is_no_job_is_refused(kind: JobKind[Any], jobs: Any) -> None:
    with pytest.raises(TypeError):
        enqueue_many(jobs)
    assert not Job.objects.exists()


def test_an_unknown_option_is_refused_where_the_job_is_made() -> None:
    with pytest.raises(TypeError, match="colour"):
        NewJob("t.plain", colour="red")


@pytest.mark.django_db(transaction=True)
def test_the_jobs_commit_together_on_their_own_or_with_the_caller(
    kind: JobKind[Any], failpoint: FailPoint, aside: Aside
) -> None:
    seen = []
    failpoint("enqueue.inserted", lambda: seen.append(aside(Job.objects.count).result()))
    with transaction.atomic():
        ids = kind.enqueue_many([1, 2, 3])
        assert Job.objects.filter(id__in=ids).count() == 3
        transaction.set_rollback(True)
    assert not Job.objects.exists()
    kind.enqueue_many([1, 2, 3])
    assert seen == [0, 0]
    assert Job.objects.count() == 3


@pytest.mark.django_db(transaction=True)
def test_a_refused_call_leaves_the_callers_transaction_usable(kind: JobKind[Any]) -> None:
    with transaction.atomic():
        kept = kind.enqueue()
        with pytest.raises(QueueDepthExceeded):
            kind.enqueue_many([1, 2], max_depth=2)
        with pytest.raises(QueueDepthExceeded):
            kind.enqueue(max_depth=1)
        assert connection.is_usable()
    assert list(Job.objects.values_list("id", flat=True)) == [kept]


@pytest.mark.django_db(transaction=True)
@pytest.mark.row("queue", "C20")
def test_calls_with_the_same_keys_in_opposite_order_both_end(
    kind: JobKind[Any], aside: Aside
) -> None:
    start = threading.Barrier(2, timeout=DEADLINE)

    def give(order: Callable[[range], Iterable[int]]) -> dict[str, int]:
        found = {}
        for number in range(5):
            keys = [f"{number}.{key}" for key in order(range(40))]
            start.wait()
            ids = enqueue_many([NewJob(kind, key=key) for key in keys])
            found.update(zip(keys, ids, strict=True))
        return found

    up, down = aside(lambda: give(list)), aside(lambda: give(reversed))
    assert up.result() == down.result()
    assert Job.objects.count() == 200
