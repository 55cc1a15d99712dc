"""max_depth: a lane that is full refuses new jobs, and only new ones, and only its own."""

import threading
from typing import Any

import pytest
from django.db import transaction

from gnl_django import (
    JobContext,
    JobKind,
    NewJob,
    QueueDepthExceeded,
    enqueue,
    enqueue_many,
)
from gnl_django.core.db import now
from gnl_django.models import Job
from gnl_django.queue.store import store_for
from tests.conformance.conftest import Aside, Declare, MakeWorker
from tests.conformance.helpers import DEADLINE, MOMENT, fail, rows_read, state_of
from tests.support import vendor

pytestmark = pytest.mark.django_db


def refused(error: pytest.ExceptionInfo[QueueDepthExceeded]) -> tuple[str, int, int, str | None]:
    raised = error.value
    return raised.kind, raised.depth, raised.max_depth, raised.org


@pytest.mark.row("queue", "C26")
def test_without_max_depth_nothing_is_counted(kind: JobKind[Any]) -> None:
    assert len({kind.enqueue() for _ in range(5)}) == 5


@pytest.mark.row("queue", "C27")
@pytest.mark.parametrize("org", ["acme", None])
def test_a_lane_takes_jobs_until_it_holds_max_depth(kind: JobKind[Any], org: str | None) -> None:
    kind.enqueue_many([1, 2], org=org)
    kind.enqueue(org=org, max_depth=3)
    with pytest.raises(QueueDepthExceeded) as error:
        kind.enqueue(org=org, max_depth=3)
    assert refused(error) == ("t.plain", 3, 3, org)
    assert Job.objects.count() == 3


@pytest.mark.row("queue", "C27")
def test_a_full_lane_is_told_with_its_numbers(kind: JobKind[Any]) -> None:
    kind.enqueue_many([1, 2], org="acme")
    with pytest.raises(QueueDepthExceeded, match="acme") as error:
        kind.enqueue(org="acme", max_depth=2)
    assert refused(error) == ("t.plain", 2, 2, "acme")
    with pytest.raises(QueueDepthExceeded) as deeper:
        kind.enqueue(org="acme", max_depth=1)
    assert refused(deeper) == ("t.plain", 1, 1, "acme")  # the count stops there
    assert Job.objects.count() == 2


@pytest.mark.row("queue", "C28")
def test_each_org_and_queue_has_a_depth_of_its_own(kind: JobKind[Any]) -> None:
    lanes: list[dict[str, Any]] = [
        {"org": "a"},
        {"org": "A"},
        {"org": None},
        {"org": "a", "queue": "low"},
    ]
    for lane in lanes:
        kind.enqueue(**lane, max_depth=1)
    for lane in lanes:
        with pytest.raises(QueueDepthExceeded):
            kind.enqueue(**lane, max_depth=1)
    assert Job.objects.count() == len(lanes)


@pytest.mark.row("queue", "C28")
def test_jobs_of_any_kind_count_towards_their_lane(declare: Declare) -> None:
    declare("t.one").enqueue()
    with pytest.raises(QueueDepthExceeded) as error:
        declare("t.two").enqueue(max_depth=1)
    assert refused(error) == ("t.two", 1, 1, None)


@pytest.mark.django_db(transaction=True)
@pytest.mark.row("queue", "C29")
def test_running_and_scheduled_jobs_count_and_final_ones_do_not(
    declare: Declare, make_worker: MakeWorker
) -> None:
    found: list[QueueDepthExceeded | int] = []

    def nosy(payload: Any, ctx: JobContext) -> None:
        for max_depth in (1, 2):
            try:
                found.append(ctx.enqueue("t.plain", max_depth=max_depth))
            except QueueDepthExceeded as error:
                found.append(error)

    declare("t.plain")
    declare("t.dead", fail, max_attempts=1).enqueue()
    declare("t.nosy", nosy)
    enqueue("t.plain")
    worker = make_worker(concurrency=1)
    assert worker.run_until_idle() == 2
    assert sorted(Job.objects.values_list("state", flat=True)) == ["dead", "succeeded"]
    enqueue("t.nosy", max_depth=1)
    worker.run_once()
    # The running job is the one in the lane.
    first, second = found
    assert isinstance(first, QueueDepthExceeded)
    assert (first.depth, first.max_depth) == (1, 1)
    assert state_of(second) == "ready"  # type: ignore[arg-type]
    enqueue("t.plain", delay=60, max_depth=2)
    with pytest.raises(QueueDepthExceeded):
        enqueue("t.plain", max_depth=2)


@pytest.mark.row("queue", "C30")
def test_a_known_key_is_answered_although_the_lane_is_full(kind: JobKind[Any]) -> None:
    first = kind.enqueue(key="k", org="a", max_depth=1)
    assert kind.enqueue(key="k", org="a", max_depth=1) == first
    with pytest.raises(QueueDepthExceeded):
        kind.enqueue(key="new", org="a", max_depth=1)


@pytest.mark.row("queue", "C32")
def test_the_calls_own_new_jobs_count_in_call_order(kind: JobKind[Any]) -> None:
    kind.enqueue(key="old")
    kind.enqueue()
    with pytest.raises(QueueDepthExceeded) as error:
        kind.enqueue_many([1, 2], max_depth=3)
    assert refused(error) == ("t.plain", 3, 3, None)
    assert Job.objects.count() == 2
    ids = enqueue_many([NewJob(kind, key="old", max_depth=3), NewJob(kind, max_depth=3)])
    assert len(ids) == 2
    assert Job.objects.count() == 3


@pytest.mark.row("queue", "C32")
def test_repeats_of_a_key_and_other_lanes_of_the_call_are_not_counted(kind: JobKind[Any]) -> None:
    limited = {"max_depth": 2}
    enqueue_many(
        [
            NewJob(kind, org="b"),
            NewJob(kind, org="b"),
            NewJob(kind, org="a", key="k", **limited),
            NewJob(kind, org="a", key="k", **limited),
            NewJob(kind, org="a", key="k", **limited),
            NewJob(kind, org="a", **limited),
        ]
    )
    assert Job.objects.filter(org="a").count() == 2


@pytest.mark.row("queue", "C32")
def test_jobs_of_the_call_without_max_depth_count_for_those_that_have_one(
    kind: JobKind[Any],
) -> None:
    enqueue_many([NewJob(kind, max_depth=1), NewJob(kind)])
    Job.objects.all().delete()
    with pytest.raises(QueueDepthExceeded) as error:
        enqueue_many([NewJob(kind), NewJob(kind, max_depth=1)])
    assert refused(error) == ("t.plain", 1, 1, None)
    assert not Job.objects.exists()


@pytest.mark.row("queue", "C33")
def test_the_count_reads_its_own_lane_and_no_more_than_max_depth_rows(kind: JobKind[Any]) -> None:
    kind.enqueue_many([None] * 500, org="long")
    kind.enqueue_many([None] * 500, org="long", delay=60)
    kind.enqueue_many([None] * 7, org="short")
    kind.enqueue_many([None] * 7, org="short", delay=60)
    past = kind.enqueue_many([None] * 500, org="long")
    Job.objects.filter(id__in=past).update(state="succeeded", finished_at=now("default"))
    store = store_for("default")

    def cost(org: str) -> int:
        assert store.depth("default", org, 7) == (0 if org == "empty" else 7)
        return rows_read(lambda: store.depth("default", org, 7))

    # Seven rows of each state at most, though the org has 1,500 and the table 1,514.
    assert cost("long") <= cost("short")
    assert cost("empty") <= cost("short")
    if vendor() != "sqlite":  # there the figure is steps of its machine, not rows
        assert cost("long") <= 3 * 7 + 3


@pytest.mark.postgres("exact counts among concurrent callers are promised for PostgreSQL")
@pytest.mark.sqlite("has one writer")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls back"])
def test_callers_with_max_depth_wait_for_each_other(
    kind: JobKind[Any], aside: Aside, commits: bool
) -> None:
    inserted, free = threading.Event(), threading.Event()

    def first() -> None:
        with transaction.atomic():
            kind.enqueue(max_depth=1)
            inserted.set()
            assert free.wait(DEADLINE)
            transaction.set_rollback(not commits)

    one = aside(first)
    assert inserted.wait(DEADLINE)
    two = aside(lambda: kind.enqueue(max_depth=1))
    assert not two.ends_within(MOMENT)
    free.set()
    one.result()
    if commits:
        with pytest.raises(QueueDepthExceeded):
            two.result()
    else:
        two.result()
    assert Job.objects.count() == 1


@pytest.mark.row("queue", "C31")
@pytest.mark.django_db(transaction=True)
def test_of_20_callers_at_once_as_many_get_through_as_the_depth_allows(
    kind: JobKind[Any], aside: Aside
) -> None:
    together = threading.Barrier(20)

    def call() -> bool:
        together.wait(DEADLINE)
        try:
            kind.enqueue(max_depth=10)
        except QueueDepthExceeded:
            return False
        return True

    calls = [aside(call) for _ in range(20)]
    let_in = sum(one.result() for one in calls)
    assert Job.objects.count() == let_in
    if vendor() == "postgresql":
        assert let_in == 10
    else:
        assert 10 <= let_in <= 20
