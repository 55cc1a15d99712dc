"""Workers as others see them: drain, resume, lost, stopped (studio.md C29, C30)."""

from collections.abc import Callable
from datetime import timedelta
from threading import Event
from typing import Any

import pytest

from gnl_django import Worker, drain_worker, enqueue, resume_worker
from gnl_django.core import clock, fleet
from gnl_django.core.db import now
from gnl_django.core.fleet import State
from gnl_django.core.models import Process
from gnl_django.queue import pauses
from gnl_django.queue.models import Job, QueueState
from tests.conformance import support_claim as s
from tests.conformance.conftest import Declare
from tests.procs import Spawner
from tests.support import vendor, wait_until

pytestmark = pytest.mark.django_db(transaction=True)
QUICK: dict[str, Any] = {"poll": 0.02, "max_poll": 0.05}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let heartbeats follow one another quickly."""
    monkeypatch.setattr(fleet, "interval", lambda: 0.05)


def row(worker: Worker) -> Process:
    return Process.objects.get(name=worker.options.name)


def entered(worker: Worker) -> None:
    """Start the worker and wait for its row."""
    worker.start()
    wait_until(lambda: Process.objects.filter(name=worker.options.name).exists())


@pytest.mark.row("studio", "C29")
def test_a_worker_that_is_asked_to_drain_does_so_and_resumes_when_asked(
    declare: Declare, quick: None
) -> None:
    declare(s.KIND)
    with s.employed(**QUICK) as worker:
        entered(worker)
        name = worker.options.name
        assert drain_worker(name, by="ana") is True
        wait_until(lambda: row(worker).draining)
        assert (row(worker).command, worker.metrics().draining) == ("", True)
        job_id = enqueue(s.KIND)
        polls = worker.metrics().polls
        wait_until(lambda: worker.metrics().polls > polls + 2)
        assert s.states() == {job_id: "ready"}
        assert resume_worker(name, by="ana") is True
        wait_until(lambda: s.states() == {job_id: "succeeded"})
        wait_until(lambda: not row(worker).draining)


@pytest.mark.row("studio", "C29")
def test_a_command_of_61_seconds_is_ignored_and_cleared(declare: Declare, quick: None) -> None:
    declare(s.KIND)
    with s.employed(**QUICK) as worker:
        entered(worker)
        at = now("default")
        Process.objects.update(command="drain", command_at=at - timedelta(seconds=61))
        wait_until(lambda: row(worker).command == "")
        assert worker.metrics().draining is False
        assert row(worker).draining is False


@pytest.mark.row("studio", "C30")
def test_a_worker_that_is_killed_is_late_then_lost_with_the_jobs_it_held(spawn: Spawner) -> None:
    job_id = enqueue("tests.act", {"do": "ignore"})
    worker = spawn(["gnl_worker", "--poll", "0.05"], env={"GNL_TEST_HEARTBEAT": "1"})
    worker.wait_line(f"act {job_id} attempt 1 starts")
    wait_until(lambda: Process.objects.filter(active=1).exists())
    worker.kill()
    worker.wait()
    found = Process.objects.get()
    assert (found.pid, found.concurrency, found.stopped_at) == (worker.pid, 10, None)
    assert found.name == Job.objects.get(id=job_id).worker
    assert "tests.act" in found.kinds
    assert found.oldest_started_at is not None
    for seconds, wanted in [(0, State.ALIVE), (16, State.LATE), (61, State.LOST)]:
        with clock.override(found.seen_at + timedelta(seconds=seconds)):
            assert fleet.state_of(found, now("default")) is wanted
    assert found.active == 1  # lost with so many jobs


@pytest.mark.row("studio", "C30")
def test_a_worker_that_ends_in_order_is_stopped_at_once(spawn: Spawner) -> None:
    worker = spawn(["gnl_worker", "--poll", "0.05", "--queues", "a,b", "--name", "mine"])
    wait_until(lambda: Process.objects.exists())
    worker.term()
    assert worker.wait() == 0
    found = Process.objects.get()
    assert fleet.state_of(found, now("default")) is State.STOPPED
    assert found.name.startswith("mine/")
    assert (found.queues, found.active) == (["a", "b"], 0)
    assert set(QueueState.objects.values_list("queue", flat=True)) == {"a", "b"}


def test_the_row_shows_what_runs_and_the_last_error_of_the_loop(
    declare: Declare, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, go_on = Event(), Event()

    def work(payload: Any) -> None:
        inside.set()
        assert go_on.wait(s.DEADLINE)

    declare(s.KIND, work)
    with s.employed(("default", "other"), concurrency=3, kinds=[s.KIND], **QUICK) as worker:
        entered(worker)
        enqueue(s.KIND)
        assert inside.wait(s.DEADLINE)
        wait_until(lambda: row(worker).active == 1)
        found = row(worker)
        assert (found.queues, found.kinds) == (["default", "other"], [s.KIND])
        assert (found.claimed, found.completed) == (1, 0)
        assert found.oldest_started_at is not None
        wait_until(lambda: row(worker).last_pass_at is not None)
        go_on.set()
        wait_until(lambda: row(worker).completed == 1)
        assert (row(worker).active, row(worker).oldest_started_at) == (0, None)
        broken = patched_passes(monkeypatch, worker)
        wait_until(lambda: row(worker).last_error == "RuntimeError: broken")
        assert row(worker).last_error_at is not None
        broken()


def patched_passes(monkeypatch: pytest.MonkeyPatch, worker: Worker) -> Callable[[], None]:
    """Let the worker's passes fail; return what ends it."""

    def turn(**_: bool) -> None:
        raise RuntimeError("broken\nin two lines")

    monkeypatch.setattr(worker._driver, "turn", turn)
    return monkeypatch.undo


def test_an_idle_workers_heartbeat_is_its_row_alone_and_a_busy_ones_looks_at_old_pauses_too(
    declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, go_on = Event(), Event()

    def work(payload: Any) -> None:
        inside.set()
        assert go_on.wait(s.DEADLINE)

    declare(s.KIND, work)
    one = 2 if vendor() == "mysql" else 1
    with s.employed(poll=60, max_poll=60) as worker:
        worker._presence.beat()
        worker._presence.beat()  # questions asked once a connection are over
        with s.statements() as seen:
            worker._presence.beat()
        assert len(seen) == one, seen
        monkeypatch.setattr(pauses, "MAX_AGE", 0.0)
        worker.start()
        enqueue(s.KIND)
        assert inside.wait(s.DEADLINE)
        wait_until(lambda: worker.metrics().active == 1)
        with s.statements() as seen:
            worker._presence.beat()
        assert len(seen) == one + 1, seen
        assert "gnl_django_queuestate" in seen[-1]
        go_on.set()


def test_a_pass_by_hand_leaves_no_row(declare: Declare) -> None:
    declare(s.KIND)
    enqueue(s.KIND)
    with s.employed() as worker:
        assert worker.run_once() == 1
    assert not Process.objects.exists()
    assert not QueueState.objects.exists()


def test_a_stopped_worker_has_noted_its_end_and_its_numbers(declare: Declare) -> None:
    declare(s.KIND)
    job_id = enqueue(s.KIND)
    with s.employed(**QUICK) as worker:
        entered(worker)
        wait_until(lambda: s.states() == {job_id: "succeeded"})
        worker.stop()
        found = row(worker)
    assert found.stopped_at is not None
    assert (found.claimed, found.completed) == (1, 1)
