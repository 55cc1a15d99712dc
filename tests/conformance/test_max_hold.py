"""max_hold and handlers that do not stop: queue.md R28, R31, rows C86-C91, C93."""

from threading import Event
from typing import Any

import pytest

from gnl_django import JobContext, Worker, enqueue
from gnl_django.models import Attempt, Job
from tests.conformance.conftest import Declare, MakeWorker
from tests.procs import Spawner
from tests.support import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
DEADLINE = 30


@pytest.mark.row("queue", "C86")
def test_a_handler_that_stops_at_its_max_hold_has_failed_and_is_dead_in_the_end(
    declare: Declare, make_worker: MakeWorker
) -> None:
    why = []

    def handler(payload: Any, ctx: JobContext) -> None:
        ctx.signal.wait(DEADLINE)
        why.append(ctx.signal.why)
        ctx.signal.raise_if_revoked()

    declare("hold", handler, max_hold=0.02, max_attempts=2, retry_delay=0)
    job = enqueue("hold")
    assert make_worker().run_until_idle() == 2
    assert why == ["timeout", "timeout"]
    row = Job.objects.get(pk=job)
    assert (row.state, row.error_class) == ("dead", "gnl_django.errors.ExecutionRevoked")
    assert list(Attempt.objects.values_list("outcome", flat=True)) == ["timeout", "timeout"]


@pytest.mark.row("queue", "C87")
@pytest.mark.parametrize("ending", ["returns", "raises"])
def test_after_the_timeout_neither_a_result_nor_another_error_counts(
    declare: Declare, make_worker: MakeWorker, ending: str
) -> None:
    def handler(payload: Any, ctx: JobContext) -> str:
        assert ctx.signal.wait(DEADLINE)
        if ending == "raises":
            raise KeyError("something else")
        return "done"

    declare("hold", handler, max_hold=0.02, max_attempts=1)
    job = enqueue("hold")
    make_worker().run_once()
    row = Job.objects.get(pk=job)
    assert (row.state, row.result) == ("dead", None)
    assert row.error_class == "gnl_django.errors.ExecutionRevoked"


@pytest.mark.row("queue", "C88")
def test_the_lease_lasts_until_the_handler_returns(
    declare: Declare, make_worker: MakeWorker, quick_beats: None
) -> None:
    revoked, go_on = Event(), Event()

    def handler(payload: Any, ctx: JobContext) -> None:
        assert ctx.signal.wait(DEADLINE)
        revoked.set()
        assert go_on.wait(DEADLINE)

    declare("hold", handler, max_hold=0.02, max_attempts=1)
    job = enqueue("hold")
    first, second = make_worker(), make_worker()
    first.start()
    assert revoked.wait(DEADLINE)
    before = Job.objects.get(pk=job).lease_expires_at
    wait_until(lambda: Job.objects.get(pk=job).lease_expires_at > before)
    assert second.run_once() == 0
    assert Job.objects.get(pk=job).state == "running"
    go_on.set()
    wait_until(lambda: Job.objects.get(pk=job).state == "dead")


@pytest.mark.row("queue", "C89")
def test_the_kinds_own_max_hold_wins_over_the_workers(
    declare: Declare, make_worker: MakeWorker
) -> None:
    def handler(payload: Any, ctx: JobContext) -> bool:
        return ctx.signal.wait(0.3 if ctx.kind == "patient" else DEADLINE)

    declare("patient", handler, max_hold=DEADLINE, max_attempts=1)
    declare("plain", handler, max_attempts=1)
    patient, plain = enqueue("patient"), enqueue("plain")
    make_worker(max_hold=0.02).run_until_idle()
    states = dict(Job.objects.values_list("pk", "state"))
    assert states == {patient: "succeeded", plain: "dead"}


@pytest.mark.row("queue", "C90")
def test_a_stuck_handler_is_named_once_and_another_slot_opens_in_its_place(
    declare: Declare,
    make_worker: MakeWorker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    release = Event()
    declare("stuck", lambda payload: release.wait(DEADLINE) and None, max_hold=0.01)
    declare("next")
    stuck = enqueue("stuck")
    worker = make_worker(concurrency=1)
    monkeypatch.setattr(worker._stuck, "_ttl", 0.1)
    worker.start()
    wait_until(lambda: worker.metrics().stuck == 1)
    assert worker.metrics().active == 0
    following = enqueue("next")
    wait_until(lambda: Job.objects.get(pk=following).state == "succeeded")
    warnings = [r for r in caplog.records if r.getMessage().startswith("Stuck:")]
    assert len(warnings) == 1
    assert f"job {stuck} (stuck)" in warnings[0].getMessage()
    assert "timeout" in warnings[0].getMessage()
    release.set()
    wait_until(lambda: worker.metrics().stuck == 0)
    wait_until(lambda: Job.objects.get(pk=stuck).state == "scheduled")


@pytest.mark.row("queue", "C90")
def test_as_many_replacements_as_slots_and_no_more(
    declare: Declare, make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = Event()
    declare("stuck", lambda payload: release.wait(DEADLINE) and None, max_hold=0.01)
    for _ in range(5):
        enqueue("stuck")
    worker: Worker = make_worker(concurrency=2)
    monkeypatch.setattr(worker._stuck, "_ttl", 0.1)
    worker.start()
    wait_until(lambda: worker.metrics().stuck == 4)
    assert worker.metrics().active == 2  # the last two have no slot opened in their place
    assert worker.metrics().runs == 4
    release.set()
    wait_until(lambda: worker.metrics().stuck == 0)
    wait_until(lambda: worker.metrics().runs == 5)


@pytest.mark.row("queue", "C91")
def test_a_worker_told_so_exits_75_when_a_handler_is_stuck(spawn: Spawner) -> None:
    job = enqueue("tests.act", {"do": "ignore"})
    worker = spawn(["gnl_worker", "--ttl", "2", "--exit-when-stuck", "--max-hold", "0.1"])
    assert worker.wait(DEADLINE * 2) == 75, worker.output()
    row = Job.objects.get(pk=job)
    assert (row.state, row.attempt) == ("ready", 0)  # given back


@pytest.mark.row("queue", "C93")
def test_a_callback_is_called_at_once_after_the_fact_and_may_fail(
    declare: Declare, make_worker: MakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    called = []

    def handler(payload: Any, ctx: JobContext) -> None:
        ctx.signal.on_revoke(lambda: called.append("before"))
        ctx.signal.on_revoke(lambda: 1 / 0)
        assert ctx.signal.wait(DEADLINE)
        ctx.signal.on_revoke(lambda: called.append("after"))

    declare("hold", handler, max_hold=0.02, max_attempts=1)
    enqueue("hold")
    make_worker().run_once()
    assert called == ["before", "after"]
    assert "on_revoke callback failed" in caplog.text
