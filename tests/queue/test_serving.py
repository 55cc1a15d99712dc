"""A worker as a process: what it waits for at its start, how it ends (R46, R52)."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from threading import Barrier, Event
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError, connection
from django.db.migrations.recorder import MigrationRecorder

from gnl_django import JobContext, Worker, enqueue
from gnl_django.core.models import Process
from gnl_django.core.supervisor import AGAIN
from gnl_django.queue import serving
from gnl_django.queue.serving import End, Limits
from tests.conformance import support_claim as s
from tests.conformance.conftest import Declare
from tests.support import wait_until

Soon = Callable[[float], None]


@pytest.fixture
def term_soon() -> Iterator[Soon]:
    """Send SIGTERM to this process in some seconds; one that comes too late ends nothing."""
    timers: list[threading.Timer] = []

    def send(seconds: float) -> None:
        timers.append(threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGTERM)))
        timers[-1].start()

    before = signal.signal(signal.SIGTERM, lambda *_: None)
    yield send
    for timer in timers:
        timer.join()
    signal.signal(signal.SIGTERM, before)


@pytest.mark.django_db
def test_a_database_with_our_tables_is_taken_at_once() -> None:
    serving.wait_for_schema("default")


@pytest.mark.django_db(transaction=True)
def test_the_thread_that_waited_keeps_no_connection() -> None:
    serving.wait_for_schema("default")
    assert connection.connection is None


def test_an_alias_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ImproperlyConfigured, match="DATABASES has no alias 'elsewhere'"):
        serving.wait_for_schema("elsewhere")


@pytest.mark.row("queue", "C140")
@pytest.mark.django_db
def test_missing_migrations_are_named() -> None:
    MigrationRecorder.Migration.objects.filter(app="gnl_django").delete()
    with pytest.raises(
        ImproperlyConfigured,
        match=r"migrations of gnl_django are not applied on 'default': 0001_initial.*migrate",
    ):
        serving.wait_for_schema("default")


@pytest.mark.django_db
def test_migrations_of_others_do_not_matter() -> None:
    MigrationRecorder.Migration.objects.exclude(app="gnl_django").exclude(
        app="contenttypes"
    ).delete()
    serving.wait_for_schema("default")


def unreachable(times: int) -> Any:
    """Return a look at the migrations that finds no database so many times."""
    driver = type("OperationalError", (Exception,), {"__module__": "psycopg.errors"})
    left = [times]

    def look(using: str) -> list[str]:
        if left[0]:
            left[0] -= 1
            raise OperationalError("no route\nto host") from driver("connection failed")
        return []

    return look


@pytest.mark.django_db
def test_a_database_that_cannot_be_reached_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serving, "ERROR_WAIT_FIRST", 0.01)
    monkeypatch.setattr(serving, "missing_migrations", unreachable(3))
    serving.wait_for_schema("default")
    lines = [record.getMessage() for record in caplog.records]
    assert [line.rpartition(";")[0] for line in lines] == [
        "The database 'default' cannot be reached (no route)"
    ] * 3
    assert [line.rpartition("; ")[2] for line in lines] == [
        "next try in 0.0 s",
        "next try in 0.0 s",
        "next try in 0.0 s",
    ]


@pytest.mark.django_db
def test_a_signal_ends_the_wait_for_the_database(
    monkeypatch: pytest.MonkeyPatch, term_soon: Soon
) -> None:
    monkeypatch.setattr(serving, "missing_migrations", unreachable(100))
    term_soon(0.05)
    with pytest.raises(SystemExit) as ended:
        serving.wait_for_schema("default")
    assert ended.value.code == 0


@pytest.mark.django_db
def test_any_other_error_of_the_database_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(using: str) -> list[str]:
        raise OperationalError("permission denied")

    monkeypatch.setattr(serving, "missing_migrations", broken)
    with pytest.raises(OperationalError, match="permission denied"):
        serving.wait_for_schema("default")


@pytest.mark.row("queue", "C138")
@pytest.mark.django_db(transaction=True)
def test_a_signal_ends_the_service_after_the_handlers(declare: Declare, term_soon: Soon) -> None:
    declare(s.KIND, lambda payload: term_soon(0.0))
    job = enqueue(s.KIND)
    with s.employed() as worker:
        assert serving.serve(worker, grace=10, until_idle=False) == End(clean=True, code=0)
    assert s.states() == {job: "succeeded"}


@pytest.mark.row("queue", "C138")
@pytest.mark.django_db(transaction=True)
def test_a_handler_that_outlasts_the_grace_is_given_back(declare: Declare, term_soon: Soon) -> None:
    def work(payload: Any, ctx: JobContext) -> None:
        term_soon(0.0)
        ctx.signal.wait(s.DEADLINE)

    declare(s.KIND, work)
    job = enqueue(s.KIND)
    with s.employed() as worker:
        assert serving.serve(worker, grace=0.1, until_idle=False) == End(clean=False, code=0)
    assert s.states() == {job: "ready"}


@pytest.mark.django_db(transaction=True)
def test_until_idle_ends_when_nothing_is_ready_and_nothing_runs(declare: Declare) -> None:
    declare(s.KIND)
    jobs = s.add([None] * 30)
    later = enqueue(s.KIND, delay=3_600)
    with s.employed(concurrency=2) as worker:
        assert serving.serve(worker, grace=10, until_idle=True) == End(clean=True, code=0)
    assert s.states() == {**dict.fromkeys(jobs, "succeeded"), later: "scheduled"}


@pytest.mark.django_db(transaction=True)
def test_a_signal_ends_until_idle_too(declare: Declare, term_soon: Soon) -> None:
    def work(payload: Any, ctx: JobContext) -> None:
        ctx.enqueue(s.KIND)
        term_soon(0.0)
        wait_until(lambda: worker.metrics().draining)  # a second signal would end this process

    declare(s.KIND, work)
    first = enqueue(s.KIND)
    with s.employed(concurrency=1) as worker:
        assert serving.serve(worker, grace=10, until_idle=True) == End(clean=True, code=0)
    assert s.states()[first] == "succeeded"
    assert "ready" in s.states().values()


# limits, and a supervisor


def serving_worker(**options: Any) -> Worker:
    return Worker(**{"poll": 0.02, "max_poll": 0.02, **options})


@pytest.mark.parametrize(("jobs", "concurrency"), [(1, 10), (7, 3), (25, 10), (40, 1)])
@pytest.mark.django_db(transaction=True)
def test_exactly_so_many_jobs_are_run_and_none_is_cut_short(
    declare: Declare, jobs: int, concurrency: int
) -> None:
    declare(s.KIND)
    s.add([f"org-{at % 3}" for at in range(50)])
    worker = serving_worker(concurrency=concurrency)
    end = serving.serve(worker, grace=0, until_idle=False, limits=Limits(jobs=jobs))
    assert end == End(clean=True, code=0)
    states = list(s.states().values())
    assert (states.count("succeeded"), states.count("ready")) == (jobs, 50 - jobs)
    assert worker.metrics().runs == jobs
    assert not Process.objects.filter(stopped_at=None).exists()  # a quick one may have no row


@pytest.mark.django_db(transaction=True)
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
    end = serving.serve(worker, grace=0, until_idle=False, limits=Limits(jobs=3))
    assert end == End(clean=True, code=0)
    assert list(s.states().values()).count("succeeded") == 3


@pytest.mark.django_db(transaction=True)
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
    assert serving.serve(worker, grace=0, until_idle=False, limits=limits) == End(
        clean=True, code=0
    )
    assert "succeeded" in s.states().values()
    assert "running" not in s.states().values()


@pytest.mark.django_db(transaction=True)
def test_memory_below_the_limit_ends_nothing(
    declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "rss_kib", lambda: 999)
    declare(s.KIND)
    s.add([None] * 3)
    limits = Limits(rss_kib=1_000)
    assert serving.serve(serving_worker(), grace=1, until_idle=True, limits=limits) == End(
        clean=True, code=0
    )
    assert set(s.states().values()) == {"succeeded"}


@pytest.mark.django_db(transaction=True)
def test_a_worker_whose_supervisor_has_died_ends(declare: Declare) -> None:
    declare(s.KIND)
    worker = serving_worker()
    assert serving.serve(worker, grace=5, until_idle=False, supervisor=os.getpid()) == End(
        clean=True, code=0
    )
    assert not Process.objects.filter(stopped_at=None).exists()  # a quick one may have no row


@pytest.mark.django_db(transaction=True)
def test_under_a_supervisor_a_limit_asks_for_a_fresh_process(declare: Declare) -> None:
    declare(s.KIND)
    s.add([None, None])
    end = serving.serve(
        serving_worker(), grace=5, until_idle=True, limits=Limits(jobs=1), supervisor=os.getppid()
    )
    assert end == End(clean=True, code=AGAIN)


@pytest.mark.django_db(transaction=True)
def test_a_stuck_handler_is_not_waited_for_at_a_limit(
    declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = Event()
    declare(s.KIND, lambda payload: go_on.wait(s.DEADLINE), max_hold=0.02)
    s.add([None])
    worker = serving_worker()
    monkeypatch.setattr(worker._stuck, "_ttl", 0.1)
    end = serving.serve(
        worker, grace=5, until_idle=False, exit_when_stuck=True, limits=Limits(jobs=1)
    )
    assert end == End(clean=False, code=75)
    go_on.set()
