"""The worker's own wiring: options, hand-over between its threads, errors, waits."""

import os
from datetime import timedelta
from threading import Barrier, Event, Lock
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from gnl_django import JobContext, NewJob, UnknownKind, Worker, cancel_job, enqueue, enqueue_many
from tests.conformance import support_claim as s
from tests.conformance.conftest import Declare, FailPoint, failpoint, finished
from tests.support import vendor, wait_until

__all__ = ["failpoint", "finished"]

pytestmark = pytest.mark.django_db(transaction=True)


def test_all_jobs_of_a_pass_start_together_though_slots_are_left_free(declare: Declare) -> None:
    """A hand-off wakes two idle slots only; the others must not be forgotten (R10)."""
    together = Barrier(7, timeout=30)
    declare("meet", lambda payload: together.wait() and None, max_attempts=1)
    declare("warm", lambda payload: release.wait(30) and None)
    release = Event()
    worker = Worker(concurrency=8, poll=60, max_poll=60)
    worker.start()
    try:
        enqueue_many([NewJob("warm") for _ in range(8)])  # every slot has its thread, and is idle
        wait_until(lambda: worker.metrics().active == 8)
        release.set()
        wait_until(lambda: worker.metrics().completed == 8)
        enqueue_many([NewJob("meet") for _ in range(7)])
        wait_until(lambda: worker.metrics().completed == 15)
    finally:
        release.set()
        assert worker.stop(30)


# options


def made(*args: Any, **options: Any) -> Worker:
    """Make a worker that is not run."""
    return Worker(*args, **options)


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"concurrency": 0}, ValueError, "concurrency"),
        ({"concurrency": True}, TypeError, "concurrency"),
        ({"concurrency": 1.5}, TypeError, "concurrency"),
        ({"ttl": 0.99}, ValueError, "ttl"),
        ({"ttl": float("nan")}, ValueError, "nan"),
        ({"poll": 0}, ValueError, "poll"),
        ({"poll": -1}, ValueError, "-1"),
        ({"poll": "1"}, TypeError, "'1'"),
        ({"poll": 2, "max_poll": 1}, ValueError, "max_poll"),
        ({"max_hold": -1}, ValueError, "-1"),
        ({"max_attempts": 0}, ValueError, "max_attempts"),
        ({"max_attempts": 32_768}, ValueError, "max_attempts"),
        ({"kinds": ["no.such.kind"]}, UnknownKind, "no.such.kind"),
        ({"name": "a b"}, ValueError, "name"),
        ({"name": "n" * 41}, ValueError, "name"),
        ({"queues": ()}, ValueError, "queues"),
        ({"queues": "default"}, ValueError, "queues"),
        ({"queues": ("a", "")}, ValueError, "queue"),
        ({"queues": ("q" * 65,)}, ValueError, "queue"),
    ],
)
def test_a_wrong_option_is_refused_and_named(
    options: dict[str, Any], error: type[Exception], named: str
) -> None:
    with pytest.raises(error) as refused:
        made(**options)
    assert named in str(refused.value)


def test_what_is_not_given_comes_from_the_settings(settings: Any) -> None:
    settings.GNL = {"TTL": 12, "POLL": 0.5, "MAX_POLL": 2.0, "CONCURRENCY": 3}
    options = made().options
    assert (options.ttl, options.poll, options.max_poll) == (12, 0.5, 2.0)
    assert (options.concurrency, options.using, options.queues) == (3, "default", ("default",))
    assert made(poll=9).options.max_poll == 9  # never below poll
    assert made(poll=0.5, backoff=False).options.max_poll == 0.5


def test_a_worker_is_named_by_host_process_and_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "h" * 200)
    one, two = (made(name="n" * 40).options.name for _ in range(2))
    assert one != two
    first, host, pid, chance = one.split("/")
    assert (first, set(host), pid, len(chance)) == ("n" * 40, {"h"}, str(os.getpid()), 6)
    assert len(one) == 100


def test_kinds_registered_later_are_served_unless_the_kinds_are_named(declare: Declare) -> None:
    declare("first")
    every, some = made(), made(kinds=["first", "first"])
    declare("second")
    assert {"first", "second"} <= set(every.options.kinds())
    assert some.options.kinds() == ("first",)


# passes that fail, outcomes that wait


def test_a_pass_that_fails_is_told_and_the_worker_goes_on(
    declare: Declare, failpoint: FailPoint, caplog: pytest.LogCaptureFixture
) -> None:
    declare(s.KIND)
    told: list[Any] = []
    failures = iter([True, True])

    def strike() -> None:
        if next(failures, False):
            raise RuntimeError("a pass failed")

    with s.employed(poll=0.01, on_error=lambda *args: told.append(args)) as worker:
        enqueue(s.KIND)
        failpoint("claim.begin", strike)
        worker.start()
        wait_until(lambda: worker.metrics().completed == 1)
    assert [(type(error), job) for error, job in told] == [(RuntimeError, None)] * 2
    assert caplog.text.count("a pass failed and the loop goes on") == 2


def cut(query: str, kill: str) -> None:
    """Let the server end this thread's session, as an administrator or a pooler would."""
    with connection.cursor() as cursor:
        cursor.execute(query)
        (session,) = cursor.fetchone()
    with s.threads() as go:
        go(lambda: connection.cursor().execute(kill.format(session))).result()


CUT = {
    "postgresql": ("SELECT pg_backend_pid()", "SELECT pg_terminate_backend({})"),
    "mysql": ("SELECT CONNECTION_ID()", "KILL {}"),
}


@pytest.mark.row("queue", "C103", "C105")
@pytest.mark.postgres("SQLite has no server that could end a session")
@pytest.mark.mysql("SQLite has no server that could end a session")
@pytest.mark.parametrize("how", ["run_once", "start"])
def test_an_outcome_outlives_the_control_connection_and_the_handler_runs_once(
    declare: Declare, failpoint: FailPoint, how: str
) -> None:
    starts: list[int] = []
    declare(s.KIND, lambda payload: starts.append(1))
    cuts = iter([True])
    failpoint("complete.begin", lambda: cut(*CUT[vendor()]) if next(cuts, False) else None)
    job = enqueue(s.KIND)
    with s.employed(poll=0.05) as worker:
        if how == "run_once":
            assert worker.run_once() == 1
        else:
            worker.start()
        wait_until(lambda: s.states()[job] == "succeeded")
        wait_until(lambda: worker.metrics().completed == 1)
    assert starts == [1]


# a COMMIT that nobody answers


class Unanswered(OperationalError):
    """What Django raises when the connection goes while a COMMIT is under way."""


@pytest.mark.parametrize("how", ["run_once", "start"])
@pytest.mark.parametrize("ending", ["complete", "retry", "bury", "cancel"])
def test_a_settle_whose_commit_nobody_answered_counts_as_what_the_row_says(
    declare: Declare, failpoint: FailPoint, finished: list[Any], ending: str, how: str
) -> None:
    counted = {
        "complete": ("completed", "succeeded"),
        "retry": ("retried", "scheduled"),
        "bury": ("dead_lettered", "dead"),
        "cancel": ("canceled", "canceled"),
    }
    errors: list[Any] = []

    def work(payload: Any, ctx: JobContext) -> None:
        if ending == "cancel":
            cancel_job(ctx.job_id)
        elif ending != "complete":
            raise ValueError("no")

    def unanswered() -> None:
        if next(losses, False):
            driver = type("OperationalError", (Exception,), {"__module__": "psycopg.errors"})
            raise Unanswered("server closed the connection") from driver("gone")

    losses = iter([True])
    declare(s.KIND, work, max_attempts=1 if ending == "bury" else 5)
    # A cancel that nobody has told of is found by the settle of a success.
    failpoint("complete.committed" if ending == "cancel" else f"{ending}.committed", unanswered)
    job = enqueue(s.KIND)
    counter, state = counted[ending]
    with s.employed(poll=0.05, on_error=lambda *args: errors.append(args)) as worker:
        if how == "run_once":
            worker.run_once()
        else:
            worker.start()
        wait_until(lambda: worker.metrics().runs == 1 and worker.holding() == 0)
        metrics = worker.metrics()
        assert (getattr(metrics, counter), metrics.lost) == (1, 0)
    assert s.states()[job] == state
    assert len([told for told in errors if told[1] is not None]) == int(ending in {"retry", "bury"})
    assert [told["state"] for told in finished] == [state] * (state != "scheduled")


# wake-up, rest, overlapping calls


def test_an_enqueue_of_this_process_wakes_an_idle_worker(declare: Declare) -> None:
    declare(s.KIND)
    with s.employed(("default", "other"), poll=60, max_poll=60) as worker:
        worker.start()
        wait_until(worker.idle)
        for queue in ("default", "other"):
            job = enqueue(s.KIND, queue=queue)
            wait_until(lambda job=job: s.states()[job] == "succeeded")
        with transaction.atomic():
            enqueue(s.KIND)
            polls = worker.metrics().polls
        wait_until(lambda: worker.metrics().completed == 3)
        assert worker.metrics().polls > polls


def test_a_job_due_soon_ends_a_long_wait(declare: Declare) -> None:
    declare(s.KIND)
    with s.employed(poll=60, max_poll=60) as worker:
        enqueue(s.KIND, delay=0.3)
        worker.start()
        wait_until(lambda: worker.metrics().completed == 1)


def test_a_worker_is_idle_only_when_nothing_runs_and_nothing_was_found(declare: Declare) -> None:
    inside, go_on = Event(), Event()
    declare(s.KIND, lambda payload: inside.set() or (go_on.wait(30) and None))
    with s.employed(poll=0.02, max_poll=0.02) as worker:
        assert not worker.idle()  # it has not looked yet
        enqueue(s.KIND)
        worker.start()
        assert inside.wait(30)
        polls = worker.metrics().polls
        wait_until(lambda: worker.metrics().polls > polls + 2)
        assert not worker.idle()
        go_on.set()
        wait_until(worker.idle)


@pytest.mark.row("queue", "C59")
def test_overlapping_calls_of_run_once_share_the_slots(
    declare: Declare, failpoint: FailPoint
) -> None:
    together = [0, 0]
    lock = Lock()

    def work(payload: Any) -> None:
        with lock:
            together[0] += 1
            together[1] = max(together)
        Event().wait(0.02)
        with lock:
            together[0] -= 1

    declare(s.KIND, work)
    jobs = s.add([None] * 12)
    gate = s.Gate(first_only=True)
    failpoint("claim.begin", gate)
    with s.employed(concurrency=2) as worker, s.threads() as go:
        first = go(worker.run_once)
        gate.wait_reached()
        assert worker.metrics().claiming == 2
        assert worker.run_once() == 0  # both slots are reserved by the claim that is held open
        gate.open()
        assert first.result(30) == 2
        sum_ = sum(call.result(30) for call in [go(worker.run_until_idle) for _ in range(3)])
        assert sum_ <= 10
        worker.run_until_idle()
        assert worker.metrics().runs == 12
    assert together[1] <= 2
    assert set(s.states()) == set(jobs)
    assert set(s.states().values()) == {"succeeded"}


def test_a_kinds_time_limit_wins_over_the_workers(declare: Declare) -> None:
    seen: dict[str, Any] = {}

    def work(payload: str, ctx: JobContext) -> None:
        ctx.signal.wait(0.3 if payload == "kind's" else s.DEADLINE)
        seen[payload] = ctx.signal.why

    declare("limit.none", work, max_attempts=1)
    declare("limit.own", work, max_attempts=1, max_hold=60)
    enqueue("limit.none", "worker's")
    enqueue("limit.own", "kind's")
    with s.employed(max_hold=timedelta(seconds=0.05)) as worker:
        assert worker.run_once() == 2
    assert seen == {"worker's": "timeout", "kind's": None}
