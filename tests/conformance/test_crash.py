"""Real workers killed by SIGKILL: at every fail point and inside handlers (queue.md 4.8, C73).

The one killed is `manage.py gnl_worker`. Who finishes the job is another process where the test is
about the lease's real time, else a worker of this process whose clock stands an hour ahead.
"""

import signal
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from gnl_django import enqueue, retry_jobs
from gnl_django.core import clock, failpoints
from gnl_django.core.db import now
from gnl_django.queue.models import Attempt, Job
from tests.conformance import support_claim as s
from tests.procs import Proc, Spawner
from tests.support import vendor, wait_until

ACT = "tests.act"
WORKER = ["gnl_worker", "--concurrency", "1", "--poll", "0.05", "--name", "crash"]


def only(job_id: int) -> Job:
    return Job.objects.get(id=job_id)


def trail(job_id: int) -> list[tuple[int, str]]:
    """Return number and outcome of the job's Attempt rows in order."""
    return list(Attempt.objects.filter(job=job_id).order_by("id").values_list("number", "outcome"))


def starts(job_id: int, *procs: Proc) -> int:
    """Return how often the handler of a job was started in these processes."""
    return sum(proc.output().count(f"act {job_id} attempt") for proc in procs)


def look(job_id: int) -> tuple[str, int, list[tuple[int, str]]]:
    """Return what the crash table speaks of: state, attempt, Attempt rows."""
    stored = only(job_id)
    return stored.state, stored.attempt, trail(job_id)


# in real time, by two processes


@pytest.mark.row("queue", "C73")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("where", ["handler", "claim.committed", "complete.updated"])
def test_another_worker_finishes_what_a_killed_one_held_after_the_lease(
    spawn: Spawner, where: str
) -> None:
    job_id = enqueue(ACT, {"do": "wait" if where == "handler" else "end"})
    short = [*WORKER, "--ttl", "1"]
    killed = spawn(short, failpoints={} if where == "handler" else {where: "kill"})
    if where == "handler":
        killed.wait_line(f"act {job_id} attempt 1 starts")
        killed.kill()
    assert killed.wait() == -signal.SIGKILL
    assert look(job_id) == ("running", 1, [])
    expiry = only(job_id).lease_expires_at
    assert expiry is not None
    other = spawn(short)
    other.wait_line(f"act {job_id} attempt 2 ends")
    wait_until(lambda: only(job_id).state == "succeeded", describe=lambda: look(job_id))
    other.term()
    assert other.wait() == 0
    stored = only(job_id)
    assert look(job_id) == ("succeeded", 2, [(1, "lease_lost")])
    assert stored.result == "attempt 2"
    assert stored.started_at is not None
    assert stored.started_at >= expiry
    attempt = Attempt.objects.get(job=job_id)
    assert attempt.error_class == "gnl_django.errors.LeaseExpired"
    assert f"/{killed.pid}/" in attempt.worker
    assert f"/{other.pid}/" in (stored.worker or "")
    # The effect: none before the handler, a second one when the first outcome was not committed.
    assert (starts(job_id, killed) > 0) == (where != "claim.committed")
    assert starts(job_id, other) == 2  # its start and its end


@pytest.mark.row("queue", "C73")
@pytest.mark.django_db(transaction=True)
def test_a_job_that_kills_its_worker_every_time_ends_dead_and_the_others_do_not_care(
    spawn: Spawner,
) -> None:
    killer = enqueue(ACT, {"do": "die", "always": True}, org="a", max_attempts=2)
    others = [enqueue("tests.quick", at, org="b") for at in range(3)]
    for _ in range(2):
        assert spawn([*WORKER, "--ttl", "1"]).wait() == -signal.SIGKILL
    last = spawn([*WORKER, "--ttl", "1"])
    wait_until(lambda: only(killer).state == "dead", describe=lambda: look(killer))
    wait_until(lambda: {only(other).state for other in others} == {"succeeded"})
    last.term()
    assert last.wait() == 0
    assert look(killer) == ("dead", 2, [(1, "lease_lost"), (2, "lease_lost")])
    assert only(killer).error_class == "gnl_django.errors.LeaseExpired"
    assert [only(other).attempt for other in others] == [1, 1, 1]


# the crash table, each fail point once


@dataclass(frozen=True)
class Crash:
    """One line of the crash table.

    do: what the handler is asked for. after: state, attempt and Attempt rows right after the kill.
    end: the same when another worker is done. options: further ones of the killed worker.
    """

    after: tuple[str, int, list[tuple[int, str]]]
    end: tuple[str, int, list[tuple[int, str]]]
    do: str = "end"
    options: tuple[str, ...] = ()


LOST: list[tuple[int, str]] = [(1, "lease_lost")]
UNTOUCHED = ("ready", 0, [])
HELD = ("running", 1, [])
ONCE = ("succeeded", 1, [])
TWICE = ("succeeded", 2, LOST)

WORKER_TABLE = {
    **{f"claim.{at}": Crash(UNTOUCHED, ONCE) for at in ("begin", "selected", "updated")},
    **dict.fromkeys(
        ("claim.committed", "handler.before", "handler.returned", "complete.begin",
         "complete.updated"),
        Crash(HELD, TWICE),
    ),
    "complete.committed": Crash(ONCE, ONCE),
    **dict.fromkeys(("retry.begin", "retry.updated"), Crash(HELD, TWICE, do="fail")),
    "retry.committed": Crash(
        ("scheduled", 1, [(1, "failed")]), ("succeeded", 2, [(1, "failed")]), do="fail"
    ),
    **dict.fromkeys(("bury.begin", "bury.updated"), Crash(HELD, TWICE, do="bury")),
    "bury.committed": Crash(
        ("dead", 1, [(1, "failed")]), ("dead", 1, [(1, "failed")]), do="bury"
    ),
    **dict.fromkeys(
        ("cancel.begin", "cancel.updated"),
        Crash(HELD, ("canceled", 0, LOST), do="cancel", options=("--ttl", "1")),
    ),
    "cancel.committed": Crash(
        ("canceled", 0, [(1, "canceled")]),
        ("canceled", 0, [(1, "canceled")]),
        do="cancel",
        options=("--ttl", "1"),
    ),
    **dict.fromkeys(
        ("release.begin", "release.updated"),
        Crash(HELD, TWICE, do="ignore", options=("--grace", "0")),
    ),
    "release.committed": Crash(
        ("ready", 0, [(1, "released")]),
        ("succeeded", 1, [(1, "released")]),
        do="ignore",
        options=("--grace", "0"),
    ),
    **dict.fromkeys(
        ("renew.begin", "renew.updated", "renew.committed"),
        Crash(HELD, TWICE, do="wait", options=("--ttl", "1")),
    ),
}  # fmt: skip

#: Points passed without a job of their own; each has a test below.
OTHER_POINTS = {
    "enqueue.begin", "enqueue.inserted", "enqueue.committed", "enqueue_many.chunk",
    "promote.updated", "promote.committed", "reap.selected", "reap.updated", "reap.committed",
    "bulk.chunk",
}  # fmt: skip


def finish() -> None:
    """Let a worker of this process do what is left, an hour later."""
    with clock.override(now("default") + timedelta(hours=1)), s.employed() as worker:
        worker.run_until_idle()


def skip_selected(point: str) -> None:
    if point == "claim.selected" and vendor() == "postgresql":
        pytest.skip("PostgreSQL claims by one statement and has no such point (queue.md 4.8)")


@pytest.mark.row("queue", "C73")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("point", WORKER_TABLE)
def test_a_worker_killed_at_a_fail_point_leaves_what_the_crash_table_says(
    spawn: Spawner, point: str
) -> None:
    skip_selected(point)
    crash = WORKER_TABLE[point]
    job_id = enqueue(ACT, {"do": crash.do})
    killed = spawn([*WORKER, *crash.options], failpoints={point: "kill"})
    if crash.do == "ignore":
        killed.wait_line(f"act {job_id} attempt 1 starts")
        killed.term()
    assert killed.wait() == -signal.SIGKILL, killed.output()
    assert look(job_id) == crash.after
    Job.objects.filter(id=job_id).update(payload={"do": "end"})
    finish()
    assert look(job_id) == crash.end
    stored = only(job_id)
    assert stored.result == (f"attempt {stored.attempt}" if stored.state == "succeeded" else None)


def test_every_fail_point_has_a_test_of_its_crash() -> None:
    assert set(WORKER_TABLE) | OTHER_POINTS == failpoints.POINTS
    assert not set(WORKER_TABLE) & OTHER_POINTS


SCRIPT = """
import django
django.setup()
from gnl_django.core import failpoints
failpoints.arm_from_environment()
from gnl_django import *
from gnl_django.queue.models import Job
{}
"""


def run_script(spawn: Spawner, line: str, point: str) -> None:
    """Run a line of Python in a child that is killed at `point`."""
    child = spawn([], python=["-c", SCRIPT.format(line)], failpoints={point: "kill"})
    assert child.wait() == -signal.SIGKILL, child.output()


@pytest.mark.row("queue", "C73")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("point", "stored"),
    [("enqueue.begin", 0), ("enqueue.inserted", 0), ("enqueue.committed", 1)],
)
def test_a_caller_killed_while_it_enqueues_may_ask_again_with_the_key(
    spawn: Spawner, point: str, stored: int
) -> None:
    run_script(spawn, "enqueue('tests.quick', 1, key='k')", point)
    before = list(Job.objects.values_list("id", flat=True))
    assert len(before) == stored
    again = enqueue("tests.quick", 2, key="k")
    assert list(Job.objects.values_list("id", "payload")) == [(again, 1 if stored else 2)]


@pytest.mark.row("queue", "C24")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("point", "stored"),
    [("enqueue_many.chunk", 0), ("enqueue.inserted", 0), ("enqueue.committed", 3)],
)
def test_a_caller_killed_while_it_enqueues_many_has_stored_all_or_none(
    spawn: Spawner, point: str, stored: int
) -> None:
    line = "enqueue_many([NewJob('tests.quick', at) for at in range(3)])"
    run_script(spawn, line, point)
    assert Job.objects.count() == stored


@pytest.mark.row("queue", "C73")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("point", "state"), [("promote.updated", "scheduled"), ("promote.committed", "ready")]
)
def test_a_worker_killed_while_it_promotes_loses_nothing(
    spawn: Spawner, point: str, state: str
) -> None:
    job_id = enqueue("tests.quick", 7, delay=60)
    Job.objects.filter(id=job_id).update(run_at=now("default"))
    killed = spawn(WORKER, failpoints={point: "kill"})
    assert killed.wait() == -signal.SIGKILL, killed.output()
    assert look(job_id) == (state, 0, [])
    finish()
    assert look(job_id) == ONCE


@pytest.mark.row("queue", "C73")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("point", "after"),
    [
        ("reap.selected", HELD),
        ("reap.updated", HELD),
        ("reap.committed", ("ready", 1, LOST)),
    ],
)
def test_a_worker_killed_while_it_reaps_leaves_the_job_to_the_next(
    spawn: Spawner, point: str, after: Any
) -> None:
    job_id = enqueue("tests.quick", 7)
    s.claim_one(kinds=("tests.quick",), ttl=0.0)
    killed = spawn(WORKER, failpoints={point: "kill"})
    assert killed.wait() == -signal.SIGKILL, killed.output()
    assert look(job_id) == after
    finish()
    assert look(job_id) == TWICE


@pytest.mark.row("queue", "C118")
@pytest.mark.django_db(transaction=True)
def test_an_operator_killed_in_a_bulk_retry_has_revived_whole_chunks(spawn: Spawner) -> None:
    s.fill(1_500, "dead", kind="tests.quick")
    run_script(spawn, "retry_jobs(Job.objects.filter(state='dead'))", "bulk.chunk")
    assert Job.objects.filter(state="ready", revivals=1).count() == 1_000
    assert Job.objects.filter(state="dead", revivals=0).count() == 500
    assert retry_jobs(Job.objects.filter(state="dead")).changed == 500
    assert Job.objects.filter(state="ready", revivals=1).count() == 1_500


# stopped, not killed


@pytest.mark.row("queue", "C77")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("point", ["handler.returned", "complete.begin"])
def test_a_worker_stopped_past_its_lease_writes_nothing_when_it_goes_on(
    spawn: Spawner, point: str
) -> None:
    job_id = enqueue(ACT, {"do": "end"})
    zombie = spawn([*WORKER, "--ttl", "1"], failpoints={point: "stop@1"})
    zombie.wait_stopped()
    assert look(job_id) == HELD
    finish()
    assert look(job_id) == TWICE
    before = Job.objects.filter(id=job_id).values().get()
    zombie.cont()
    follower = enqueue(ACT, {"do": "end"})  # it goes on with the next job
    zombie.wait_line(f"act {follower} attempt 1 ends")
    wait_until(lambda: only(follower).state == "succeeded")
    zombie.term()
    assert zombie.wait() == 0
    assert Job.objects.filter(id=job_id).values().get() == before
    assert trail(job_id) == LOST
