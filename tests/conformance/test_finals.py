"""Every way into a final state is announced once, and outcomes that cannot be written wait."""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NoReturn

import pytest
from django.db import transaction

from gnl_django import JobContext, JobKind, PermanentFailure, Worker, cancel_job
from gnl_django.core import clock
from gnl_django.core.db import now
from gnl_django.core.heartbeat import Verdict
from gnl_django.core.leases import Lease
from gnl_django.models import Job
from gnl_django.queue.store import store_for
from gnl_django.signals import job_finished
from tests.conformance.conftest import Aside, Declare, MakeWorker
from tests.conformance.helpers import (
    DEADLINE,
    MOMENT,
    attempts_of,
    fail,
    job_of,
    row_held,
    running,
    state_of,
)
from tests.support import vendor, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

Sent = list[dict[str, Any]]


def hopeless(payload: Any) -> NoReturn:
    raise PermanentFailure("never")


def cancels_itself(payload: Any, ctx: JobContext) -> None:
    cancel_job(ctx.job_id)


def after_an_hour(worker: Worker) -> None:
    with clock.override(now("default") + timedelta(hours=2)):
        worker.run_once()


def reap_dead(job_id: int, worker: Worker) -> None:
    running(job_id, attempt=5)
    after_an_hour(worker)


def reap_canceled(job_id: int, worker: Worker) -> None:
    running(job_id)
    cancel_job(job_id)
    after_an_hour(worker)


def run(job_id: int, worker: Worker) -> None:
    worker.run_once()


def spoil(job_id: int, worker: Worker) -> None:
    Job.objects.filter(id=job_id).update(payload=["not a mapping"])
    worker.run_once()


def mapping(payload: dict[str, int]) -> None:
    """Succeed."""


PATHS: dict[str, tuple[Callable[..., Any] | None, Callable[[int, Worker], object], str]] = {
    "success": (None, run, "succeeded"),
    "last failure": (fail, run, "dead"),
    "permanent failure": (hopeless, run, "dead"),
    "invalid payload": (mapping, spoil, "dead"),
    "canceled while running": (cancels_itself, run, "canceled"),
    "canceled while waiting": (None, lambda job_id, worker: cancel_job(job_id), "canceled"),
    "reaped after the last attempt": (None, reap_dead, "dead"),
    "reaped after a cancellation": (None, reap_canceled, "canceled"),
}


@pytest.mark.row("queue", "C111")
@pytest.mark.parametrize("org", ["acme", None])
@pytest.mark.parametrize("path", PATHS)
def test_each_way_into_a_final_state_is_announced_once(
    declare: Declare, make_worker: MakeWorker, finished: Sent, path: str, org: str | None
) -> None:
    handler, act, state = PATHS[path]
    kind = declare("t.ends", handler, max_attempts=1)
    job_id = kind.enqueue({}, org=org)
    worker = make_worker()
    act(job_id, worker)
    assert state_of(job_id) == state
    worker.run_until_idle()
    assert finished == [{"job_id": job_id, "kind": "t.ends", "org": org, "state": state}]


@pytest.mark.row("queue", "C111")
def test_a_release_that_meets_a_cancellation_is_announced_too(
    declare: Declare, make_worker: MakeWorker, finished: Sent
) -> None:
    started, free = threading.Event(), threading.Event()

    def handle(payload: Any) -> None:
        started.set()
        assert free.wait(DEADLINE)

    job_id = declare("t.slow", handle).enqueue()
    worker = make_worker()
    worker.start()
    assert started.wait(DEADLINE)
    cancel_job(job_id)
    try:
        assert worker.stop(0.01) is False
    finally:
        free.set()
    job = job_of(job_id)
    assert (job.state, job.attempt) == ("canceled", 0)
    assert finished == [{"job_id": job_id, "kind": "t.slow", "org": None, "state": "canceled"}]


@pytest.mark.row("queue", "C111")
def test_what_is_not_final_is_not_announced(
    declare: Declare, make_worker: MakeWorker, finished: Sent
) -> None:
    declare("t.fails", fail, max_attempts=2).enqueue()
    lost = declare("t.lost").enqueue(delay=60)
    running(lost)
    worker = make_worker(max_attempts=9)
    worker.run_once()
    with clock.override(now("default") + timedelta(hours=2)):
        store_for("default").reap()
    assert set(Job.objects.values_list("state", flat=True)) == {"scheduled", "ready"}
    assert finished == []


@pytest.mark.row("queue", "C111")
def test_a_cancellation_is_announced_when_it_commits_and_not_before(
    kind: JobKind[Any], finished: Sent
) -> None:
    job_id = kind.enqueue()
    with transaction.atomic():
        cancel_job(job_id)
        transaction.set_rollback(True)
    assert finished == []
    with transaction.atomic():
        cancel_job(job_id)
        assert finished == []
    assert [sent["state"] for sent in finished] == ["canceled"]


@pytest.mark.row("queue", "C111")
def test_the_end_of_a_job_run_inside_a_transaction_is_announced_when_that_commits(
    kind: JobKind[Any], make_worker: MakeWorker, finished: Sent
) -> None:
    worker = make_worker()
    with transaction.atomic():
        kind.enqueue()
        assert worker.run_once() == 1
        transaction.set_rollback(True)
    assert finished == []
    with transaction.atomic():
        kind.enqueue()
        assert worker.run_once() == 1
        assert finished == []
    assert [sent["state"] for sent in finished] == ["succeeded"]


@pytest.mark.row("queue", "C111")
def test_a_receiver_that_fails_hurts_neither_the_job_nor_the_other_receivers(
    kind: JobKind[Any], make_worker: MakeWorker, finished: Sent, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(**values: Any) -> NoReturn:
        raise RuntimeError("receiver")

    job_finished.connect(broken)
    try:
        ids = kind.enqueue_many([1, 2])
        assert make_worker(concurrency=1).run_until_idle() == 2
    finally:
        job_finished.disconnect(broken)
    assert [sent["job_id"] for sent in finished] == ids
    assert [state_of(job_id) for job_id in ids] == ["succeeded"] * 2
    assert "job_finished" in caplog.text


class Batch:
    """Three jobs whose handlers run and wait for `free`."""

    def __init__(self, declare: Declare, make_worker: MakeWorker, **options: Any) -> None:
        self.free = threading.Event()
        self.started = threading.Barrier(4, timeout=DEADLINE)
        self.signals: dict[int, str | None] = {}

        def handle(payload: Any, ctx: JobContext) -> str:
            self.started.wait()
            assert self.free.wait(DEADLINE)
            self.signals[ctx.job_id] = ctx.signal.why
            if payload == "fails":
                raise ValueError("no")
            return "done"

        self.ids = declare("t.gated", handle, max_attempts=1).enqueue_many(["a", "b", "fails"])
        self.told: list[object] = []
        self.worker = make_worker(
            concurrency=3, on_error=lambda error, job: self.told.append(error), **options
        )
        self.worker.start()
        self.started.wait()

    @property
    def states(self) -> list[str]:
        """The states of the three."""
        return [state_of(job_id) for job_id in self.ids]


@pytest.fixture
def batch(declare: Declare, make_worker: MakeWorker) -> Iterator[Callable[..., Batch]]:
    made: list[Batch] = []

    def make(**options: Any) -> Batch:
        made.append(Batch(declare, make_worker, **options))
        return made[-1]

    yield make
    for one in made:
        one.free.set()


@pytest.mark.row("queue", "C109")
@pytest.mark.parametrize("stale", [0, 1, 2])
def test_one_stale_outcome_of_a_batch_changes_nothing_and_the_others_are_stored(
    batch: Callable[..., Batch], stale: int
) -> None:
    jobs = batch()
    token = running(jobs.ids[stale])
    jobs.free.set()
    wait_until(lambda: jobs.worker.metrics().active == 0 and jobs.worker.metrics().lost == 1)
    expected = ["succeeded", "succeeded", "dead"]
    expected[stale] = "running"
    wait_until(lambda: jobs.states == expected)
    job = job_of(jobs.ids[stale])
    assert (job.claim_token, job.result, job.error) == (token, None, "")
    assert attempts_of(job.id) == []
    metrics = jobs.worker.metrics()
    assert (metrics.runs, metrics.lost) == (3, 1)
    assert metrics.completed + metrics.failed == 2
    if stale != 2:
        wait_until(lambda: jobs.told)
    jobs.worker.stop(DEADLINE)
    assert len(jobs.told) == (0 if stale == 2 else 1)


@pytest.mark.row("queue", "C109")
@pytest.mark.parametrize("locked", [0, 1, 2])
def test_a_locked_outcome_of_a_batch_is_stored_after_its_release_and_the_others_at_once(
    batch: Callable[..., Batch], locked: int
) -> None:
    jobs = batch()
    expected = ["succeeded", "succeeded", "dead"]
    with row_held(jobs.ids[locked]):
        jobs.free.set()
        if vendor() == "sqlite":
            # One writer: all wait, none is lost.
            assert not threading.Event().wait(MOMENT)
            assert jobs.states == ["running"] * 3
        else:
            held = [*expected[:locked], "running", *expected[locked + 1 :]]
            wait_until(lambda: jobs.states == held)
    wait_until(lambda: jobs.states == expected)
    assert [len(attempts_of(job_id)) for job_id in jobs.ids] == [0, 0, 1]
    wait_until(lambda: jobs.worker.metrics().failed == 1)
    metrics = jobs.worker.metrics()
    assert (metrics.completed, metrics.lost, metrics.runs) == (2, 0, 3)


@pytest.mark.postgres("SQLite has one writer and no locks of rows")
@pytest.mark.mysql
@pytest.mark.row("queue", "C109")
@pytest.mark.usefixtures("short_leases")
def test_a_row_that_stays_locked_is_lost_by_the_holders_own_clock(
    batch: Callable[..., Batch],
) -> None:
    jobs = batch(ttl=2.0)
    with row_held(jobs.ids[1]):
        wait_until(lambda: jobs.worker.metrics().active == 3)
        expires = job_of(jobs.ids[0]).lease_expires_at
        wait_until(lambda: job_of(jobs.ids[0]).lease_expires_at != expires)  # still renewed
        before = job_of(jobs.ids[1]).lease_expires_at
        jobs.free.set()
        wait_until(lambda: jobs.worker.metrics().lost == 1)
        assert job_of(jobs.ids[1]).lease_expires_at == before
        assert [jobs.states[at] for at in (0, 2)] == ["succeeded", "dead"]
        assert jobs.states[1] == "running"
    # Nothing was written for it: it is reaped like the job of a worker that died.
    wait_until(lambda: jobs.states[1] == "dead")
    assert [row.outcome for row in attempts_of(jobs.ids[1])] == ["lease_lost"]


@pytest.mark.row("queue", "C109")
def test_a_renewal_extends_what_is_free_and_tells_apart_what_is_locked_and_what_is_lost(
    kind: JobKind[Any], aside: Aside
) -> None:
    ids = kind.enqueue_many([1, 2, 3, 4])
    tokens = [running(job_id) for job_id in ids]
    running(ids[2])  # somebody else's by now
    cancel_job(ids[3])
    before = {job_id: job_of(job_id).lease_expires_at for job_id in ids}
    leases = [Lease(*pair, good_at=0.0) for pair in zip(ids, tokens, strict=True)]
    store = store_for("default")
    if vendor() == "sqlite":
        with row_held(ids[1]):
            renewal = aside(lambda: store_for("default").renew(leases, 9_000))
            assert not renewal.ends_within(MOMENT)
        verdicts = renewal.result()
        expected = [Verdict.RENEWED, Verdict.RENEWED, Verdict.GONE, Verdict.CANCELED]
        untouched = [ids[2]]
    else:
        with row_held(ids[1]):
            verdicts = store.renew(leases, 9_000)
        expected = [Verdict.RENEWED, Verdict.LOCKED, Verdict.GONE, Verdict.CANCELED]
        untouched = [ids[1], ids[2]]
    assert [(lease.id, verdict) for lease, verdict in sorted(verdicts, key=lambda v: v[0].id)] == [
        *zip(ids, expected, strict=True)
    ]
    assert [i for i in ids if job_of(i).lease_expires_at == before[i]] == untouched
