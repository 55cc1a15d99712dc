"""`ctx.progress`: at most one write a second, the last value always there; queue.md 3.6."""

from threading import Event
from typing import Any

import pytest

from gnl_django import ExecutionRevoked, InvalidPayload, JobContext, enqueue
from gnl_django.models import Job
from gnl_django.queue import execution
from gnl_django.queue.store.base import Store
from tests.conformance.conftest import Declare, MakeWorker
from tests.support import wait_until

DEADLINE = 30


@pytest.mark.django_db(transaction=True)
def test_progress_is_seen_while_the_handler_runs(declare: Declare, make_worker: MakeWorker) -> None:
    go_on = Event()

    def handler(payload: Any, ctx: JobContext) -> None:
        ctx.progress(3, 10, "reading")
        assert go_on.wait(DEADLINE)

    declare("far", handler)
    job = enqueue("far")
    worker = make_worker()
    worker.start()
    wait_until(lambda: Job.objects.get(pk=job).progress is not None)
    assert Job.objects.get(pk=job).progress == {"done": 3, "message": "reading", "total": 10}
    go_on.set()


@pytest.mark.django_db(transaction=True)
def test_many_reports_are_few_writes_and_the_last_one_counts(
    declare: Declare, make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Any] = []
    monkeypatch.setattr(execution, "REPORT_EVERY", 3_600.0)

    def handler(payload: Any, ctx: JobContext) -> None:
        for number in range(1_000):
            ctx.progress(number)

    declare("far", handler)
    job = enqueue("far")
    worker = make_worker()
    store: Store = worker._driver._store
    original = type(store).progress

    def counting(self: Store, reports: Any) -> None:
        written.extend(reports)
        original(self, reports)

    monkeypatch.setattr(type(store), "progress", counting)
    worker.start()
    wait_until(lambda: Job.objects.get(pk=job).state == "succeeded")
    assert Job.objects.get(pk=job).progress["done"] == 999
    assert len(written) <= 2


@pytest.mark.django_db
def test_progress_works_inside_a_test_case(declare: Declare, make_worker: MakeWorker) -> None:
    declare("far", lambda payload, ctx: ctx.progress(0.5))
    job = enqueue("far")
    make_worker().run_once()
    assert Job.objects.get(pk=job).progress == {"done": 0.5, "message": "", "total": None}


@pytest.mark.django_db(transaction=True)
def test_the_next_attempt_begins_without_progress(
    declare: Declare, make_worker: MakeWorker
) -> None:
    seen = []

    def handler(payload: Any, ctx: JobContext) -> None:
        seen.append(Job.objects.get(pk=ctx.job_id).progress)
        if ctx.attempt == 1:
            ctx.progress(7)
            raise ValueError("again")

    declare("far", handler, retry_delay=0)
    enqueue("far")
    assert make_worker().run_until_idle() == 2
    assert seen == [None, None]


@pytest.mark.django_db(transaction=True)
def test_progress_of_a_revoked_attempt_is_refused(
    declare: Declare, make_worker: MakeWorker
) -> None:
    raised = []

    def handler(payload: Any, ctx: JobContext) -> None:
        assert ctx.signal.wait(DEADLINE)
        with pytest.raises(ExecutionRevoked) as caught:
            ctx.progress(1)
        raised.append(caught.value.why)

    declare("far", handler, max_hold=0.02, max_attempts=1)
    enqueue("far")
    make_worker().run_once()
    assert raised == ["timeout"]


@pytest.mark.django_db(transaction=True)
def test_progress_that_is_no_json_is_refused(declare: Declare, make_worker: MakeWorker) -> None:
    def handler(payload: Any, ctx: JobContext) -> None:
        with pytest.raises(InvalidPayload):
            ctx.progress(1, message="x" * 5_000)
        with pytest.raises(InvalidPayload):
            ctx.progress(float("nan"))

    declare("far", handler)
    job = enqueue("far")
    make_worker().run_once()
    assert Job.objects.get(pk=job).state == "succeeded"
