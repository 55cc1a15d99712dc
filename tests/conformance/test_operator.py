"""What an operator does to jobs: revive them, one or many, once however often he asks."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from gnl_django import (
    BulkResult,
    JobContext,
    JobKind,
    cancel_job,
    discard_job,
    enqueue,
    retry_job,
    retry_jobs,
    run_job_now,
)
from gnl_django.core import clock
from gnl_django.core.db import now
from gnl_django.models import Job
from tests.conformance.conftest import NOON, Aside, Declare, FailPoint, MakeWorker
from tests.conformance.helpers import (
    attempts_of,
    columns_of,
    fail,
    job_of,
    row_held,
    running,
    state_of,
)
from tests.conformance.support_claim import analyze
from tests.support import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

UNKNOWN = [2**62, 2**63, 2**64, 0, -1]


@pytest.mark.row("queue", "C113")
def test_a_revived_job_is_the_same_job_with_all_its_attempts(
    declare: Declare, make_worker: MakeWorker
) -> None:
    seen: list[tuple[int, str, int, Any]] = []

    def handle(payload: Any, ctx: JobContext) -> str:
        seen.append((ctx.job_id, ctx.run_id, ctx.attempt, payload))
        if len(seen) < 3:
            raise ValueError("no")
        return "done"

    kind = declare("t.fails", handle, max_attempts=2, retry_delay=0)
    job_id = kind.enqueue({"a": 1}, key="k", org="acme", priority=4, meta={"m": 1})
    worker = make_worker()
    worker.run_until_idle()
    before = columns_of(job_id)
    assert before["state"] == "dead"
    with clock.override(NOON):
        assert retry_job(job_id) == job_id
    after = columns_of(job_id)
    changed = {name: value for name, value in after.items() if value != before[name]}
    assert changed == {
        "state": "ready",
        "attempt": 0,
        "revivals": 1,
        "run_at": NOON,
        "finished_at": None,
        "error_class": "",
        "error": "",
        "error_key": None,
    }
    assert worker.run_once() == 1
    job = job_of(job_id)
    assert (job.state, job.attempt, job.revivals, job.result) == ("succeeded", 1, 1, "done")
    assert [(row.number, row.revival) for row in attempts_of(job_id)] == [(1, 0), (2, 0)]
    assert seen == [(job_id, f"job:{job_id}", number, {"a": 1}) for number in (1, 2, 1)]


@pytest.mark.row("queue", "C113")
def test_the_attempts_of_a_revived_job_are_counted_anew(
    declare: Declare, make_worker: MakeWorker
) -> None:
    job_id = declare("t.fails", fail, max_attempts=2, retry_delay=0).enqueue()
    worker = make_worker()
    worker.run_until_idle()
    retry_job(job_id)
    assert worker.run_until_idle() == 2
    job = job_of(job_id)
    assert (job.state, job.attempt, job.revivals) == ("dead", 2, 1)
    assert [(row.number, row.revival) for row in attempts_of(job_id)] == [
        *((1, 0), (2, 0)),
        *((1, 1), (2, 1)),
    ]


@pytest.mark.row("queue", "C113")
def test_a_revived_job_runs_now_although_it_was_meant_for_later(
    declare: Declare, make_worker: MakeWorker
) -> None:
    kind = declare("t.plain")
    job_id = kind.enqueue(run_at=now("default") + timedelta(days=9))
    cancel_job(job_id)
    retry_job(job_id)
    assert make_worker().run_once() == 1
    assert state_of(job_id) == "succeeded"


@pytest.mark.row("queue", "C114")
def test_a_canceled_job_is_revived_without_its_cancellation(
    kind: JobKind[Any], make_worker: MakeWorker
) -> None:
    job_id = kind.enqueue()
    assert cancel_job(job_id, "wrong customer")
    assert retry_job(job_id) == job_id
    job = job_of(job_id)
    assert (job.state, job.revivals, job.finished_at) == ("ready", 1, None)
    assert (job.cancel_requested_at, job.cancel_reason) == (None, "")
    assert make_worker().run_once() == 1
    assert state_of(job_id) == "succeeded"


def in_state(kind: JobKind[Any], state: str) -> int:
    """Return a job in one of the states from which there is no revival."""
    job_id = kind.enqueue("x", delay=60 if state == "scheduled" else None)
    if state == "running":
        running(job_id)
    elif state == "succeeded":
        Job.objects.filter(id=job_id).update(state=state, finished_at=NOON, result={"a": 1})
    return job_id


@pytest.mark.row("queue", "C115")
@pytest.mark.parametrize("state", ["ready", "scheduled", "running", "succeeded"])
@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_a_job_that_is_neither_dead_nor_canceled_stays_as_it_is(
    kind: JobKind[Any], state: str, many: bool
) -> None:
    job_id = in_state(kind, state)
    before = columns_of(job_id)
    if many:
        assert retry_jobs([job_id]) == BulkResult(matched=1, changed=0, skipped=1)
    else:
        assert retry_job(job_id) is None
    assert columns_of(job_id) == before
    assert before["state"] == state


@pytest.mark.row("queue", "C115")
@pytest.mark.parametrize("job_id", UNKNOWN)
def test_an_unknown_job_cannot_be_revived(job_id: int) -> None:
    assert retry_job(job_id) is None
    assert retry_jobs([job_id]) == BulkResult(matched=1, changed=0, skipped=1)


@pytest.mark.row("queue", "C118")
def test_of_no_jobs_none_are_revived() -> None:
    assert retry_jobs([]) == BulkResult(0, 0, 0)
    assert retry_jobs(Job.objects.none()) == BulkResult(0, 0, 0)


@pytest.mark.row("queue", "C116")
def test_a_second_revival_changes_nothing(declare: Declare, make_worker: MakeWorker) -> None:
    job_id = declare("t.fails", fail, max_attempts=1).enqueue()
    make_worker().run_once()
    assert retry_job(job_id) == job_id
    before = columns_of(job_id)
    assert retry_job(job_id) is None
    assert columns_of(job_id) == before


@pytest.mark.row("queue", "C116")
def test_of_two_operators_at_once_one_revives_the_job(
    declare: Declare, make_worker: MakeWorker, aside: Aside
) -> None:
    kind = declare("t.fails", fail, max_attempts=1)
    ids = kind.enqueue_many(range(20))
    make_worker(concurrency=20).run_until_idle()

    def revive() -> list[int | None]:
        return [retry_job(job_id) for job_id in ids]

    one, two = aside(revive), aside(revive)
    for job_id, first, second in zip(ids, one.result(), two.result(), strict=True):
        assert {first, second} == {job_id, None}
    assert set(Job.objects.values_list("state", "revivals")) == {("ready", 1)}


@pytest.mark.row("queue", "C118")
@pytest.mark.parametrize("by_query", [True, False], ids=["queryset", "ids"])
def test_many_are_revived_in_chunks_while_workers_claim_what_is_ready(
    declare: Declare, make_worker: MakeWorker, failpoint: FailPoint, by_query: bool
) -> None:
    kind = declare("t.plain")
    ids = kind.enqueue_many(range(3_205))
    dead, others = ids[:3_200], ids[3_200:]
    Job.objects.filter(id__gte=dead[0], id__lte=dead[-1]).update(state="dead", finished_at=NOON)
    Job.objects.filter(id__in=others).update(state="succeeded", finished_at=NOON)
    worker = make_worker(concurrency=10)
    steps: list[int] = []

    def look() -> None:
        steps.append(Job.objects.filter(revivals=1).count())
        assert worker.run_once() == 10

    failpoint("bulk.chunk", look)
    assert retry_jobs(Job.objects.filter(kind="t.plain") if by_query else ids[::-1]) == BulkResult(
        matched=3_205, changed=3_200, skipped=5
    )
    assert steps == [1_000, 2_000, 3_000, 3_200]
    assert Job.objects.filter(state="ready", attempt=0).count() == 3_160
    assert Job.objects.filter(state="succeeded", revivals=1).count() == 40
    assert Job.objects.filter(state="succeeded", revivals=0).count() == 5


@pytest.mark.row("queue", "C118")
def test_a_revival_by_query_takes_what_the_query_names_and_nothing_else(
    declare: Declare,
) -> None:
    one, two = declare("t.one"), declare("t.two")
    ids = [kind.enqueue() for kind in (one, two, one)]
    Job.objects.update(state="dead", finished_at=NOON)
    newest_first = Job.objects.filter(kind="t.one", state="dead").order_by("-id")
    assert retry_jobs(newest_first) == BulkResult(2, 2, 0)
    assert [state_of(job_id) for job_id in ids] == ["ready", "dead", "ready"]
    Job.objects.update(state="dead", finished_at=NOON)
    assert retry_jobs(Job.objects.order_by("-id")[:2]) == BulkResult(2, 2, 0)
    assert [state_of(job_id) for job_id in ids] == ["dead", "ready", "ready"]
    assert retry_jobs([ids[0], ids[0]]) == BulkResult(1, 1, 0)


@pytest.mark.postgres("SQLite has one writer and no locks of rows")
@pytest.mark.mysql
@pytest.mark.row("queue", "C118")
def test_a_row_that_somebody_holds_is_skipped_and_not_waited_for(kind: JobKind[Any]) -> None:
    ids = kind.enqueue_many(range(3))
    analyze()  # "no dead rows": the planner likes to look there, where the held one is
    Job.objects.update(state="dead", finished_at=NOON)
    with row_held(ids[1]):
        assert retry_jobs(ids) == BulkResult(matched=3, changed=2, skipped=1)
    assert [state_of(job_id) for job_id in ids] == ["ready", "dead", "ready"]


@pytest.mark.parametrize(
    "act",
    [retry_job, lambda job_id: retry_jobs([job_id]), cancel_job],
    ids=["retry_job", "retry_jobs", "cancel_job"],
)
def test_an_act_belongs_to_the_operators_transaction(
    kind: JobKind[Any], act: Callable[[int], object]
) -> None:
    job_id = kind.enqueue()
    if act is not cancel_job:
        cancel_job(job_id)
    before = columns_of(job_id)
    with transaction.atomic():
        assert act(job_id)
        assert columns_of(job_id) != before
        transaction.set_rollback(True)
    assert columns_of(job_id) == before


def test_a_revived_job_wakes_a_worker_of_this_process(
    declare: Declare, make_worker: MakeWorker
) -> None:
    declare("t.plain")
    job_id = enqueue("t.plain")
    cancel_job(job_id)
    worker = make_worker(poll=30, max_poll=30)
    worker.start()
    wait_until(lambda: worker.metrics().polls > 0)
    retry_job(job_id)
    wait_until(lambda: state_of(job_id) == "succeeded")


@pytest.mark.django_db
@pytest.mark.parametrize("number", [0, -1, 2**63, 2**64])
def test_what_can_be_no_id_is_no_job(number: int) -> None:
    assert run_job_now(number) is False
    assert discard_job(number) is False
    assert cancel_job(number) is False
    assert retry_job(number) is None


@pytest.mark.django_db
def test_a_reason_to_discard_is_cleaned_of_what_not_every_database_takes(
    declare: Declare, make_worker: MakeWorker
) -> None:
    declare("bad", lambda payload: 1 / 0, max_attempts=1)
    job = enqueue("bad")
    make_worker().run_once()
    assert discard_job(job, "gone\x00 \ud800" + "x" * 600)
    reason = Job.objects.get(pk=job).cancel_reason
    assert reason.startswith("gone")
    assert len(reason) == 500
