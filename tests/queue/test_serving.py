"""A worker served until a limit, an orphan's end or idleness; signals: tests/management."""

import os
from threading import Barrier, Event
from typing import Any

import pytest

from gnl_django import Worker
from gnl_django.core.models import Process
from gnl_django.queue import serving
from gnl_django.queue.serving import Ending, Limits, serve
from tests.conformance import support_claim as s
from tests.conformance.conftest import Declare

pytestmark = pytest.mark.django_db(transaction=True)


def serving_worker(**options: Any) -> Worker:
    return Worker(**{"poll": 0.02, "max_poll": 0.02, **options})


@pytest.mark.parametrize(("jobs", "concurrency"), [(1, 10), (7, 3), (25, 10), (40, 1)])
def test_exactly_so_many_jobs_are_run_and_none_is_cut_short(
    declare: Declare, jobs: int, concurrency: int
) -> None:
    declare(s.KIND)
    s.add([f"org-{at % 3}" for at in range(50)])
    worker = serving_worker(concurrency=concurrency)
    ending = serve(worker, grace=0, until_idle=False, limits=Limits(jobs=jobs))
    assert ending == Ending(clean=True, again=True)
    states = list(s.states().values())
    assert (states.count("succeeded"), states.count("ready")) == (jobs, 50 - jobs)
    assert worker.metrics().runs == jobs
    assert Process.objects.get().stopped_at is not None


def test_handlers_that_run_when_the_limit_is_reached_end_in_their_own_time(
    declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, drained = Barrier(3), Event()

    def work(payload: Any) -> None:
        inside.wait(s.DEADLINE)
        assert drained.wait(s.DEADLINE)

    declare(s.KIND, work)
    s.add([None] * 5)
    worker = serving_worker(concurrency=3)
    real = worker.drain

    def drain() -> None:
        real()
        drained.set()

    monkeypatch.setattr(worker, "drain", drain)
    # Without a moment of grace: nothing is revoked all the same.
    ending = serve(worker, grace=0, until_idle=False, limits=Limits(jobs=3))
    assert ending == Ending(clean=True, again=True)
    assert list(s.states().values()).count("succeeded") == 3


def test_too_much_memory_ends_a_worker_after_at_least_one_job(
    declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = [2_000]
    monkeypatch.setattr(serving, "rss_kib", lambda: memory[0])
    declare(s.KIND)
    limits = Limits(rss_kib=1_000)
    worker = serving_worker()
    assert limits.reached(worker) is False  # however big it is at its start
    s.add([None] * 3)
    assert serve(worker, grace=0, until_idle=False, limits=limits) == Ending(True, again=True)
    assert "succeeded" in s.states().values()
    assert "running" not in s.states().values()


def test_memory_below_the_limit_ends_nothing(
    declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "rss_kib", lambda: 999)
    declare(s.KIND)
    s.add([None] * 3)
    limits = Limits(rss_kib=1_000)
    assert serve(serving_worker(), grace=1, until_idle=True, limits=limits) == Ending(True)
    assert set(s.states().values()) == {"succeeded"}


def test_a_worker_whose_supervisor_has_died_ends(declare: Declare) -> None:
    declare(s.KIND)
    worker = serving_worker()
    assert serve(worker, grace=5, until_idle=False, supervisor=os.getpid()) == Ending(True)
    assert Process.objects.get().stopped_at is not None
