"""Who is woken by an enqueue: workers of this process and, on PostgreSQL, of others; R8, R51."""

import logging
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from gnl_django import enqueue
from gnl_django.core import listener, wakeup
from gnl_django.models import Job
from gnl_django.queue import waking
from tests.conformance.conftest import Declare, MakeWorker
from tests.support import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
DEADLINE = 30
LONG = 60.0


def at_rest(worker: Any) -> None:
    """Wait until the worker has made a pass and sleeps for long."""
    wait_until(lambda: worker.metrics().polls >= 1 and worker.idle())


@pytest.mark.row("queue", "C147")
def test_an_enqueue_of_this_process_wakes_its_worker(
    declare: Declare, make_worker: MakeWorker
) -> None:
    declare("soon")
    worker = make_worker(poll=LONG, max_poll=LONG)
    worker.start()
    at_rest(worker)
    job = enqueue("soon")
    wait_until(lambda: Job.objects.get(pk=job).state == "succeeded")


@pytest.mark.row("queue", "C148")
def test_a_job_for_later_is_started_in_time_by_a_worker_that_sleeps_for_long(
    declare: Declare, make_worker: MakeWorker
) -> None:
    declare("later")
    worker = make_worker(poll=LONG, max_poll=LONG)
    worker.start()
    at_rest(worker)
    job = enqueue("later", delay=0.3)
    wait_until(lambda: Job.objects.get(pk=job).state == "succeeded")
    row = Job.objects.get(pk=job)
    assert row.started_at >= row.run_at


@pytest.mark.row("queue", "C02")
def test_nothing_is_woken_before_the_commit_or_by_a_rollback(declare: Declare) -> None:
    declare("soon")
    woken: list[str] = []

    def wake() -> None:
        woken.append("soon")

    wakeup.subscribe(waking.READY, ["default"], wake)
    try:
        with transaction.atomic():
            enqueue("soon")
            transaction.set_rollback(True)
        with transaction.atomic():
            enqueue("soon")
            assert woken == []
        assert woken == ["soon"]
    finally:
        wakeup.unsubscribe(wake)


@pytest.mark.postgres("only PostgreSQL has NOTIFY")
def test_an_enqueue_of_another_process_wakes_a_sleeping_worker(
    declare: Declare, make_worker: MakeWorker
) -> None:
    declare("soon")
    worker = make_worker(poll=LONG, max_poll=LONG)
    worker.start()
    at_rest(worker)
    wait_until(lambda: listeners() == 1)
    # As another process would: the row, then the notification, without this process's wake-up.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wakeup, "_listeners", {})
        patch.setattr(listener, "_notified", {})  # the test before may have notified just now
        enqueue("soon")
    wait_until(lambda: Job.objects.get().state == "succeeded")


@pytest.mark.row("queue", "C143")
@pytest.mark.postgres("only PostgreSQL has NOTIFY")
def test_a_listener_whose_connection_is_killed_comes_back_and_looks_once(
    declare: Declare, make_worker: MakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    declare("soon")
    worker = make_worker(poll=LONG, max_poll=LONG)
    worker.start()
    at_rest(worker)
    wait_until(lambda: listeners() == 1)
    polls = worker.metrics().polls
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
        )
    wait_until(lambda: "listener lost its connection" in caplog.text)
    wait_until(lambda: listeners() == 1)
    wait_until(lambda: worker.metrics().polls > polls)


@pytest.mark.row("queue", "C144")
@pytest.mark.postgres("only PostgreSQL has NOTIFY")
def test_a_process_notifies_a_queue_at_most_once_in_50_ms(
    declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare("soon")
    now = [100.0]
    monkeypatch.setattr(listener, "monotonic", lambda: now[0])
    monkeypatch.setattr(listener, "_notified", {})
    sent = 0
    for _ in range(64):
        with CaptureQueriesContext(connection) as queries:
            enqueue("soon")
        sent += sum("pg_notify" in query["sql"] for query in queries)
        now[0] += 0.01
    assert sent == 13  # 640 ms
    with CaptureQueriesContext(connection) as queries:
        enqueue("soon", queue="other")
        enqueue("soon", delay=60, queue="third")
    assert sum("pg_notify" in query["sql"] for query in queries) == 1


@pytest.mark.postgres("only PostgreSQL has NOTIFY")
def test_notify_can_be_turned_off(declare: Declare, make_worker: MakeWorker, settings: Any) -> None:
    settings.GNL = {"NOTIFY": False}
    declare("soon")
    worker = make_worker()
    worker.start()
    at_rest(worker)
    with CaptureQueriesContext(connection) as queries:
        enqueue("soon")
    assert not any("pg_notify" in query["sql"] for query in queries)
    assert listeners() == 0


def listeners() -> int:
    """Return how many sessions of this database listen; to the control channel last."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND query LIKE 'LISTEN%gnl_control%' AND state = 'idle'"
        )
        return int(cursor.fetchone()[0])
