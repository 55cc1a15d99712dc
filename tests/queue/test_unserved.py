"""Ready jobs that nobody will take are warned of (R24)."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from gnl_django import Worker, drain_worker, pause_queue
from gnl_django.core import clock, fleet
from gnl_django.core.db import now
from gnl_django.core.fleet import Numbers
from gnl_django.core.health import HealthWarning
from gnl_django.core.models import Process
from gnl_django.queue import unserved
from tests.conformance import support_claim as s
from tests.conformance.conftest import Declare
from tests.support import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def frozen() -> Iterator[clock.Override]:
    """Stop the database's clock."""
    with clock.override(now("default")) as moment:
        yield moment


def works(queues: list[str], kinds: list[str], name: str = "w", *, draining: bool = False) -> int:
    """Enter a live worker."""
    return fleet.enter("default", name, "worker", queues, Numbers(kinds=kinds, draining=draining))


def warnings() -> list[HealthWarning]:
    return unserved.warnings("default", now("default"))


def found() -> list[str]:
    return [one.code for one in warnings()]


def test_without_ready_jobs_all_is_well_in_one_statement() -> None:
    s.fill(50, "scheduled", ahead="3600 + n")
    s.fill(50, "dead")
    warnings()  # questions that are asked once a connection
    with s.statements() as seen:
        assert warnings() == []
    assert len(seen) == 1 + 1  # the present instant is asked for by the caller


def test_a_queue_with_jobs_and_no_live_worker_is_named() -> None:
    s.fill(1_500, queue="a")
    s.fill(1, queue="b")
    s.fill(1, queue="c")
    works(["c", "d"], [s.KIND])
    warnings()  # questions that are asked once a connection
    with s.statements() as seen:
        warned = warnings()
    assert len(seen) == 1 + 2
    assert warned == [
        HealthWarning("no_worker", "No live worker serves queue a: 1,500 jobs are ready.", True),
        HealthWarning("no_worker", "No live worker serves queue b: 1 job is ready.", True),
    ]


def test_a_worker_that_is_lost_stopped_or_draining_serves_nothing(
    frozen: clock.Override,
) -> None:
    s.fill(3)
    works(["default"], [s.KIND], "lost")
    frozen.advance(timedelta(seconds=61))
    fleet.leave("default", works(["default"], [s.KIND], "stopped"), Numbers())
    works(["default"], [s.KIND], "draining", draining=True)
    assert found() == ["no_worker"]
    works(["default"], [s.KIND], "late")
    frozen.advance(timedelta(seconds=59))
    assert found() == []


@pytest.mark.row("queue", "C50")
def test_a_thousand_ready_jobs_of_kinds_that_nobody_serves_are_warned_of() -> None:
    works(["default"], [s.KIND])
    works(["other"], ["strange.0"], "elsewhere")  # a handler in another queue is none here
    s.fill(2_000)
    for at in range(7):
        s.fill(140 + at, kind=f"strange.{at}")
    s.fill(1)
    assert warnings() == [
        HealthWarning(
            "unserved",
            "Queue default: 1,001 jobs are ready of kinds that no live worker has a handler for "
            "(strange.6, strange.5, strange.4, strange.3, strange.2 and 2 more). Give them a queue "
            "of their own.",
        )
    ]


def test_fewer_than_a_thousand_are_no_reason_to_warn() -> None:
    works(["default"], [s.KIND])
    s.fill(999, kind="strange")
    assert found() == []


def test_the_kinds_of_all_live_workers_of_a_queue_count() -> None:
    s.fill(1_000, kind="strange")
    works(["default"], [s.KIND])
    assert found() == ["unserved"]
    works(["default", "x"], ["strange"], "two")
    assert found() == []


def test_a_long_backlog_is_read_only_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unserved, "READ_MOST", 1_000)
    s.fill(3_000)
    (warning,) = warnings()
    assert warning.text == "No live worker serves queue default: at least 1,000 jobs are ready."


def test_a_paused_queue_with_a_worker_is_no_fault() -> None:
    s.fill(5)
    works(["default"], [s.KIND])
    pause_queue("default", by="ana")
    assert found() == []


def test_a_real_worker_is_seen_with_its_queues_and_kinds(
    declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "interval", lambda: 0.05)
    declare(s.KIND)
    pause_queue("default")
    s.fill(5)
    with s.employed(kinds=[s.KIND], poll=0.05) as worker:
        start(worker)
        assert found() == []
        s.fill(1_000, kind="strange")
        assert found() == ["unserved"]
        drain_worker(worker.options.name)
        wait_until(lambda: Process.objects.get().draining)
        assert found() == ["no_worker"]


def start(worker: Worker) -> None:
    worker.start()
    wait_until(lambda: Process.objects.exists())
