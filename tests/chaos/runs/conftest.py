"""Fixtures of the fault tests of runs: the recorder knows of runs, the victims come in waves."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from gnl_django import Worker
from gnl_django.core import leases
from gnl_django.models import Job, Run
from tests.chaos.conftest import OPEN
from tests.chaos.durable import Plan
from tests.chaos.run import give
from tests.history import Recorder
from tests.run_history import RunRecorder, install_run_audit, remove_run_audit
from tests.support import wait_until

#: Seconds of the leases and locks of those who are to die or freeze: longer than any stall of the
#: machine. `vanish` ends them when their holders are gone.
LONG = 30.0
PAST = datetime(2020, 1, 1, tzinfo=UTC)

Plans = Callable[..., int]
Settle = Callable[..., None]


@pytest.fixture
def recorder(recorder: Recorder) -> Iterator[RunRecorder]:
    """Record what happens to runs too."""
    remove_run_audit()
    install_run_audit()
    knowing = RunRecorder(recorder.directory)
    yield knowing
    knowing.client.close()
    remove_run_audit()


@pytest.fixture
def give_plan(chaos_kinds: None, recorder: RunRecorder) -> Plans:
    """Give a job with a plan: `give_plan(Plan(..), queue="q") -> id`."""

    def enqueue(plan: Any, kind: str = "chaos.durable", **options: Any) -> int:
        mark = {"m": plan.m, "kind": kind, "payload": plan.model_dump(), **options}
        job_id: int = give(recorder.client, "enqueue", mark)
        return job_id

    return enqueue


@pytest.fixture
def settle(chaos_kinds: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settle]:
    """Run an honest worker in this process until no job of whatever queue is open."""
    monkeypatch.setattr(leases, "MIN_TTL", 0.01)
    workers: list[Worker] = []

    def work() -> None:
        Job.objects.filter(state__in=OPEN).update(queue="default")
        honest = Worker(concurrency=4, ttl=5.0, poll=0.02)
        workers.append(honest)

        def done() -> bool:
            honest.run_once()
            return not Job.objects.filter(state__in=OPEN).exists()

        wait_until(done, 30.0, describe=lambda: list(Job.objects.values("id", "state", "error")))

    yield work
    for honest in workers:
        honest.stop(5)


def vanish() -> None:
    """Let every lease and lock end: whoever holds one is gone."""
    Job.objects.filter(state="running").update(lease_expires_at=PAST)
    Run.objects.filter(lock_token__isnull=False).update(lock_expires_at=PAST)


def plan_of(m: str, *parts: Any, **options: Any) -> Plan:
    """Return a plan."""
    return Plan(m=m, parts=list(parts), **options)
