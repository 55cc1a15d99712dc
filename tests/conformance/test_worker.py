"""The worker in this process: passes, metrics, drain, stop, waits (C128-C137, C141, C142)."""

from collections.abc import Callable
from itertools import pairwise
from threading import Event
from time import monotonic
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection, transaction
from django.test import TestCase

from gnl_django import JobContext, Worker, enqueue, enqueue_many, job
from gnl_django.queue.models import Attempt, Job
from gnl_django.queue.options import NewJob
from gnl_django.queue.options import kinds as registry
from tests.conformance import support_claim as s
from tests.conformance.conftest import Declare
from tests.support import wait_until

Failpoint = Callable[[str, Callable[[], None]], None]

COUNTERS = (
    "runs", "completed", "failed", "retried", "dead_lettered", "canceled", "lost", "released",
    "deferred", "polls", "reaped",
)  # fmt: skip


def counted(worker: Worker) -> dict[str, int]:
    """Return the counters that are not zero."""
    metrics = worker.metrics()
    return {name: value for name in COUNTERS if (value := getattr(metrics, name))}


def held_handler(declare: Declare) -> tuple[Event, Event]:
    """Declare a handler that stays until the second event; the first says that it has started."""
    inside, go_on = Event(), Event()

    def work(payload: Any) -> None:
        inside.set()
        assert go_on.wait(s.DEADLINE)

    declare(s.KIND, work)
    return inside, go_on


# metrics


@pytest.mark.row("queue", "C128")
@pytest.mark.django_db
def test_a_fresh_worker_counts_nothing() -> None:
    with s.employed(concurrency=7) as worker:
        metrics = worker.metrics()
    assert counted(worker) == {}
    assert (metrics.active, metrics.claiming, metrics.capacity) == (0, 0, 7)
    assert metrics.draining is False
    assert metrics.last_tick_at is None


@pytest.mark.row("queue", "C129")
@pytest.mark.django_db(transaction=True)
def test_two_jobs_and_two_passes_of_one_slot_are_counted(declare: Declare) -> None:
    declare(s.KIND)
    s.add([None, None])
    with s.employed(concurrency=1) as worker:
        assert [worker.run_once(), worker.run_once()] == [1, 1]
        assert counted(worker) == {"runs": 2, "completed": 2, "polls": 2}
        assert worker.metrics().last_tick_at is not None


@pytest.mark.row("queue", "C130")
@pytest.mark.django_db(transaction=True)
def test_a_job_that_always_fails_is_counted_as_retried_then_as_dead(declare: Declare) -> None:
    def work(payload: Any) -> None:
        raise ValueError("always")

    declare(s.KIND, work, max_attempts=2, retry_delay=0)
    job_id = enqueue(s.KIND)
    with s.employed() as worker:
        assert worker.run_until_idle() == 2
        assert counted(worker) == {
            "runs": 2, "retried": 1, "failed": 1, "dead_lettered": 1, "polls": 3,
        }  # fmt: skip
    assert s.states() == {job_id: "dead"}


# drain, resume, stop


@pytest.mark.row("queue", "C131")
@pytest.mark.django_db(transaction=True)
def test_a_draining_worker_claims_nothing_until_it_resumes(declare: Declare) -> None:
    declare(s.KIND)
    job_id = enqueue(s.KIND)
    with s.employed() as worker:
        worker.drain()
        assert worker.metrics().draining is True
        assert worker.run_once() == 0
        assert s.states() == {job_id: "ready"}
        assert counted(worker) == {"polls": 1}
        worker.resume()
        assert worker.metrics().draining is False
        assert worker.run_once() == 1
    assert s.states() == {job_id: "succeeded"}


@pytest.mark.row("queue", "C132")
@pytest.mark.django_db(transaction=True)
def test_draining_lets_a_running_handler_end(declare: Declare) -> None:
    inside, go_on = held_handler(declare)
    first = enqueue(s.KIND)
    with s.employed(poll=0.02, max_poll=0.02) as worker:
        worker.start()
        assert inside.wait(s.DEADLINE)
        worker.drain()
        wait_until(lambda: worker.metrics().claiming == 0)  # a claim in flight still counts
        second = enqueue(s.KIND)
        assert worker.metrics().active == 1
        go_on.set()
        wait_until(lambda: worker.metrics().active == 0)
        wait_until(lambda: s.states()[first] == "succeeded")
        polls = worker.metrics().polls
        wait_until(lambda: worker.metrics().polls > polls + 2)
        assert s.states() == {first: "succeeded", second: "ready"}


@pytest.mark.row("queue", "C133")
@pytest.mark.django_db(transaction=True)
def test_jobs_of_a_claim_in_flight_run_though_the_worker_drains(
    declare: Declare, failpoint: Failpoint
) -> None:
    declare(s.KIND)
    job_id = enqueue(s.KIND)
    gate = s.Gate(first_only=True)
    failpoint("claim.updated", gate)
    with s.employed(concurrency=3) as worker:
        worker.start()
        gate.wait_reached()
        metrics = worker.metrics()
        assert (metrics.claiming, metrics.active) == (3, 0)
        worker.drain()
        gate.open()
        wait_until(lambda: s.states()[job_id] == "succeeded")
        assert worker.metrics().claiming == 0
        assert counted(worker)["runs"] == 1


@pytest.mark.row("queue", "C134")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("point", ["claim.updated", "complete.begin"])
def test_stop_waits_for_the_claim_the_handler_and_the_settle(
    declare: Declare, failpoint: Failpoint, point: str
) -> None:
    inside, go_on = held_handler(declare)
    job_id = enqueue(s.KIND)
    gate = s.Gate(first_only=True)
    failpoint(point, gate)
    with s.employed() as worker, s.threads() as go:
        worker.start()
        if point == "claim.updated":
            gate.wait_reached()
            stopping = go(worker.stop)
            assert not stopping.done()
            gate.open()
        assert inside.wait(s.DEADLINE)
        if point != "claim.updated":
            stopping = go(worker.stop)
        assert not stopping.done()
        go_on.set()
        gate.wait_reached()
        gate.open()
        assert stopping.result(s.DEADLINE) is True
        assert s.states() == {job_id: "succeeded"}
        assert counted(worker)["completed"] == 1


@pytest.mark.row("queue", "C134")
@pytest.mark.django_db(transaction=True)
def test_stop_with_a_limit_gives_back_what_still_runs(declare: Declare) -> None:
    inside, seen = Event(), []

    def work(payload: Any, ctx: JobContext) -> str:
        inside.set()
        seen.append(ctx.signal.wait(s.DEADLINE) and ctx.signal.why)
        return "nobody will read this"

    declare(s.KIND, work)
    job_id = enqueue(s.KIND)
    run_at = Job.objects.get(id=job_id).run_at
    with s.employed() as worker:
        worker.start()
        assert inside.wait(s.DEADLINE)
        assert worker.stop(0.1) is False
        stored = Job.objects.get(id=job_id)
        assert (stored.state, stored.attempt, stored.run_at) == ("ready", 0, run_at)
        assert counted(worker)["released"] == 1
        wait_until(lambda: seen)
        wait_until(lambda: worker.metrics().active == 0)
    attempt = Attempt.objects.get(job=job_id)
    assert (attempt.outcome, attempt.number) == ("released", 1)
    assert seen == ["lease-lost"]
    stored = Job.objects.get(id=job_id)
    assert (stored.state, stored.result, stored.claim_token) == ("ready", None, None)
    assert worker.metrics().runs == 1


@pytest.mark.row("queue", "C134")
@pytest.mark.django_db(transaction=True)
def test_start_and_stop_may_be_called_again_and_resume_cannot_undo_a_stop(
    declare: Declare,
) -> None:
    declare(s.KIND)
    with s.employed() as worker:
        worker.start()
        worker.start()
        enqueue(s.KIND)
        wait_until(lambda: worker.metrics().completed == 1)
        assert worker.stop() is True
        assert worker.stop() is True
        worker.resume()
        worker.start()
        late = enqueue(s.KIND)
        assert worker.run_once() == 0
        assert worker.metrics().draining is True
        assert s.states()[late] == "ready"


# waits


def passes(failpoint: Failpoint, slow: float = 0.0) -> tuple[list[float], list[int]]:
    """Note when each pass claims, and how many passes claim at the same time."""
    moments: list[float] = []
    at_once: list[int] = [0, 0]

    def begin() -> None:
        moments.append(monotonic())
        at_once[0] += 1
        at_once[1] = max(at_once)
        if slow:
            Event().wait(slow)
        at_once[0] -= 1

    failpoint("claim.begin", begin)
    return moments, at_once


def waits_of(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Note how long the control thread decides to wait when it has found nothing."""
    waits: list[float] = []
    real = worker._idle.take

    def take() -> float:
        waits.append(real())
        return waits[-1]

    monkeypatch.setattr(worker._idle, "take", take)
    return waits


GROWTH = [0.015, 0.03, 0.06, 0.12, 0.24, 0.24, 0.24]


@pytest.mark.row("queue", "C135")
@pytest.mark.django_db(transaction=True)
def test_waits_of_an_idle_worker_double_to_the_longest_and_a_job_resets_them(
    declare: Declare, failpoint: Failpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(s.KIND)
    enqueue(s.KIND)  # so that the worker has its place in the ring
    with s.employed(poll=0.015, max_poll=0.24, concurrency=1) as worker:
        assert worker.run_once() == 1
        moments, _ = passes(failpoint)
        waits = waits_of(worker, monkeypatch)
        worker.start()
        wait_until(lambda: len(moments) >= 8, describe=lambda: moments)
        assert waits[:7] == GROWTH
        gaps = [two - one for one, two in pairwise(moments[:8])]
        assert all(gap >= wait - 0.002 for gap, wait in zip(gaps, GROWTH, strict=True)), gaps
        begun = len(waits)
        s.add([None])
        wait_until(lambda: worker.metrics().completed == 2)
        wait_until(lambda: waits[-2:] == GROWTH[-2:], describe=lambda: waits)
        assert GROWTH[0] in waits[begun:]
        shortest = max(at for at, wait in enumerate(waits) if wait == GROWTH[0])
        assert waits[shortest : shortest + 6] == GROWTH[:6]


@pytest.mark.row("queue", "C135")
@pytest.mark.django_db(transaction=True)
def test_without_backoff_an_idle_worker_always_waits_the_same(
    declare: Declare, failpoint: Failpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(s.KIND)
    enqueue(s.KIND)
    with s.employed(poll=0.015, max_poll=5.0, backoff=False) as worker:
        assert worker.run_once() == 1
        moments, _ = passes(failpoint)
        waits = waits_of(worker, monkeypatch)
        worker.start()
        wait_until(lambda: len(moments) > 12)
    gaps = [two - one for one, two in pairwise(moments[:12])]
    assert min(gaps) > 0.013
    assert set(waits) == {0.015}


@pytest.mark.row("queue", "C135")
@pytest.mark.django_db(transaction=True)
def test_passes_slower_than_the_poll_never_overlap(declare: Declare, failpoint: Failpoint) -> None:
    declare(s.KIND)
    enqueue(s.KIND)
    with s.employed(poll=0.01, max_poll=0.02) as worker:
        assert worker.run_once() == 1
        moments, at_once = passes(failpoint, slow=0.05)
        worker.start()
        wait_until(lambda: len(moments) > 5)
        enqueue(s.KIND)
        wait_until(lambda: len(moments) > 10)
    assert at_once[1] == 1
    assert min(two - one for one, two in pairwise(moments)) >= 0.05


@pytest.mark.row("queue", "C136")
@pytest.mark.django_db(transaction=True)
def test_a_long_job_does_not_hold_up_the_second_slot(declare: Declare) -> None:
    inside, go_on = held_handler(declare)
    declare("worker.second")
    first, second = enqueue(s.KIND), enqueue("worker.second")
    with s.employed(concurrency=2, poll=20, max_poll=20) as worker:
        worker.start()
        assert inside.wait(s.DEADLINE)
        wait_until(lambda: s.states()[second] == "succeeded")
        third = enqueue("worker.second")
        wait_until(lambda: s.states()[third] == "succeeded")
        assert s.states()[first] == "running"
        go_on.set()


@pytest.mark.row("queue", "C137")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("concurrency", [1, 10])
def test_1000_jobs_are_run_without_a_pause(declare: Declare, concurrency: int) -> None:
    starts: list[float] = []
    declare(s.KIND, lambda payload: starts.append(monotonic()))
    s.add([f"org-{at % 5}" for at in range(1_000)])
    # A single pause would be as long as the whole test may take.
    with s.employed(concurrency=concurrency, poll=60, max_poll=60) as worker:
        worker.start()
        wait_until(lambda: worker.metrics().completed == 1_000, 55, describe=worker.metrics)
    assert len(starts) == 1_000
    assert max(two - one for one, two in pairwise(starts)) < 50
    assert set(s.states().values()) == {"succeeded"}


# run_once and run_until_idle


class RunOnceInATestCaseTests(TestCase):
    """A worker inside `atomic()`, as users' tests have it (R48)."""

    def setUp(self) -> None:
        self.seen: list[Any] = []

        @job("worker.inline", max_attempts=2, retry_delay=0)
        def work(payload: Any, ctx: JobContext) -> str:
            self.seen.append((connection.in_atomic_block, Group.objects.count(), ctx.attempt))
            Group.objects.create(name=f"made by {ctx.job_id} {ctx.attempt}")
            if payload == "fail" and ctx.attempt == 1:
                raise ValueError("rolled back")
            return "done"

        @job("worker.inline_async")
        async def work_async(payload: Any, ctx: JobContext) -> int:
            return await Group.objects.acount()

        self.addCleanup(registry.forget, "worker.inline")
        self.addCleanup(registry.forget, "worker.inline_async")

    @pytest.mark.row("queue", "C141")
    def test_the_handler_runs_on_the_tests_connection_and_sees_what_is_not_committed(self) -> None:
        Group.objects.create(name="uncommitted")
        job_id = enqueue("worker.inline")
        assert Worker().run_once() == 1
        assert self.seen == [(True, 1, 1)]
        assert Job.objects.get(id=job_id).state == "succeeded"
        assert Group.objects.filter(name__startswith="made by").count() == 1

    @pytest.mark.row("queue", "C141")
    def test_what_a_failed_handler_wrote_is_rolled_back_alone(self) -> None:
        Group.objects.create(name="uncommitted")
        job_id = enqueue("worker.inline", "fail")
        assert Worker().run_until_idle() == 2
        assert [attempt for _, _, attempt in self.seen] == [1, 2]
        assert set(Group.objects.values_list("name", flat=True)) == {
            "uncommitted",
            f"made by {job_id} 2",
        }
        assert Attempt.objects.get(job=job_id).outcome == "failed"

    @pytest.mark.row("queue", "C141")
    def test_jobs_run_one_after_another_and_async_ones_too(self) -> None:
        Group.objects.create(name="uncommitted")
        job_id = enqueue("worker.inline_async")
        enqueue_many([NewJob("worker.inline") for _ in range(3)])
        assert Worker().run_once() == 4
        assert Job.objects.get(id=job_id).result == 1
        assert [groups for _, groups, _ in self.seen] == [1, 2, 3]

    @pytest.mark.row("queue", "C141")
    def test_a_broken_transaction_of_a_handler_is_its_own_failure(self) -> None:
        @job("worker.broken", max_attempts=1)
        def work(payload: Any) -> None:
            Group.objects.create(name="twice")
            Group.objects.create(name="twice")

        self.addCleanup(registry.forget, "worker.broken")
        job_id = enqueue("worker.broken")
        assert Worker().run_once() == 1
        assert Job.objects.get(id=job_id).state == "dead"
        assert Group.objects.count() == 0


@pytest.mark.row("queue", "C141")
@pytest.mark.django_db(transaction=True)
def test_outside_a_transaction_handlers_run_elsewhere_with_real_commits(declare: Declare) -> None:
    seen: list[Any] = []

    def work(payload: Any) -> None:
        seen.append((connection.in_atomic_block, Group.objects.count()))
        Group.objects.create(name="committed")
        raise ValueError("what is written stays")

    declare(s.KIND, work, max_attempts=1)
    enqueue(s.KIND)
    Group.objects.create(name="before")
    with s.employed(concurrency=1) as worker:
        assert worker.run_once() == 1
    assert seen == [(False, 1)]
    assert Group.objects.count() == 2


@pytest.mark.row("queue", "C142")
@pytest.mark.django_db(transaction=True)
def test_run_until_idle_returns_the_number_of_claims(declare: Declare) -> None:
    declare(s.KIND)

    def fail(payload: Any) -> None:
        raise ValueError("again")

    declare("worker.fails", fail, retry_delay=0)
    declare("worker.later", fail, retry_delay=60)
    with s.employed(concurrency=1) as worker:
        s.add([None, None])
        assert worker.run_until_idle() == 2
        assert worker.run_until_idle() == 0
        enqueue("worker.fails", max_attempts=3)
        assert worker.run_until_idle() == 3
        # A retry in the future is not waited for.
        waiting = enqueue("worker.later")
        assert worker.run_until_idle() == 1
    assert s.states()[waiting] == "scheduled"


@pytest.mark.row("queue", "C142")
@pytest.mark.django_db(transaction=True)
def test_a_job_enqueued_by_a_handler_is_run_too(declare: Declare) -> None:
    def work(payload: int, ctx: JobContext) -> None:
        if payload:
            ctx.enqueue(s.KIND, payload - 1)

    declare(s.KIND, work)
    with transaction.atomic():
        enqueue(s.KIND, 4)
    with s.employed() as worker:
        assert worker.run_until_idle() == 5
