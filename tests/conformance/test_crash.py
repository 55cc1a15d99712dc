"""Real workers killed by SIGKILL: at every fail point and inside handlers (queue.md 4.8, C73).

The one killed is `manage.py gnl_worker`. Who finishes the job is another process where the test is
about the lease's real time, else a worker of this process whose clock stands an hour ahead.
"""

import signal
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal

import pytest

from gnl_django import enqueue, retry_jobs
from gnl_django.core import clock, failpoints
from gnl_django.core.db import now
from gnl_django.queue.models import Attempt, Job
from tests.conformance import support_claim as s
from tests.conformance.nursery import Nursery
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

Row = tuple[str, int, list[tuple[int, str]]]


@dataclass(frozen=True)
class Crash:
    """One line of the crash table.

    after: state, attempt and Attempt rows right after the kill. end: the same when another worker
    is done. do: what the handler is asked for. options: further ones of the killed worker.
    before: what the job is when the worker comes.
    """

    after: Row
    end: Row
    do: str = "end"
    options: tuple[str, ...] = ()
    before: Literal["ready", "due", "expired"] = "ready"


LOST: list[tuple[int, str]] = [(1, "lease_lost")]
UNTOUCHED: Row = ("ready", 0, [])
HELD: Row = ("running", 1, [])
ONCE: Row = ("succeeded", 1, [])
TWICE: Row = ("succeeded", 2, LOST)
FAILED: list[tuple[int, str]] = [(1, "failed")]
SHORT = ("--ttl", "2")
AT_ONCE = ("--grace", "0")

TABLE: dict[str, Crash] = {
    "promote.updated": Crash(("scheduled", 0, []), ONCE, before="due"),
    "promote.committed": Crash(UNTOUCHED, ONCE, before="due"),
    "claim.begin": Crash(UNTOUCHED, ONCE),
    "claim.selected": Crash(UNTOUCHED, ONCE),
    "claim.updated": Crash(UNTOUCHED, ONCE),
    "claim.committed": Crash(HELD, TWICE),
    "handler.before": Crash(HELD, TWICE),
    "handler.returned": Crash(HELD, TWICE),
    "renew.begin": Crash(HELD, TWICE, "wait", SHORT),
    "renew.updated": Crash(HELD, TWICE, "wait", SHORT),
    "renew.committed": Crash(HELD, TWICE, "wait", SHORT),
    "complete.begin": Crash(HELD, TWICE),
    "complete.updated": Crash(HELD, TWICE),
    "complete.committed": Crash(ONCE, ONCE),
    "retry.begin": Crash(HELD, TWICE, "fail"),
    "retry.updated": Crash(HELD, TWICE, "fail"),
    "retry.committed": Crash(("scheduled", 1, FAILED), ("succeeded", 2, FAILED), "fail"),
    "bury.begin": Crash(HELD, TWICE, "bury"),
    "bury.updated": Crash(HELD, TWICE, "bury"),
    "bury.committed": Crash(("dead", 1, FAILED), ("dead", 1, FAILED), "bury"),
    "cancel.begin": Crash(HELD, ("canceled", 1, LOST), "cancel", SHORT),
    "cancel.updated": Crash(HELD, ("canceled", 1, LOST), "cancel", SHORT),
    "cancel.committed": Crash(
        ("canceled", 0, [(1, "canceled")]), ("canceled", 0, [(1, "canceled")]), "cancel", SHORT
    ),
    "release.begin": Crash(HELD, TWICE, "wait", AT_ONCE),
    "release.updated": Crash(HELD, TWICE, "wait", AT_ONCE),
    "release.committed": Crash(
        ("ready", 0, [(1, "released")]), ("succeeded", 1, [(1, "released")]), "wait", AT_ONCE
    ),
    "reap.selected": Crash(HELD, TWICE, before="expired"),
    "reap.updated": Crash(HELD, TWICE, before="expired"),
    "reap.committed": Crash(("ready", 1, LOST), TWICE, before="expired"),
}

#: Points that no worker passes; each has a test below.
CALLERS_POINTS = {
    "enqueue.begin", "enqueue.inserted", "enqueue.committed", "enqueue_many.chunk", "bulk.chunk",
    "prune.selected", "prune.deleted",
}  # fmt: skip


def queue_of(point: str) -> str:
    """Return the queue of a point's job, which no other point's worker serves."""
    return f"crash.{point}"


def prepare(point: str, crash: Crash) -> int:
    """Enqueue the job of a line, in the state that the line begins with."""
    job_id = enqueue(ACT, {"do": crash.do}, queue=queue_of(point))
    if crash.before == "due":
        Job.objects.filter(id=job_id).update(state="scheduled")
    elif crash.before == "expired":
        s.claim_one(kinds=(ACT,), queue=queue_of(point), ttl=0.0)
    return job_id


def finish(*queues: str) -> None:
    """Let a worker of this process do what is left, an hour later."""
    with clock.override(now("default") + timedelta(hours=1)), s.employed(queues) as worker:
        worker.run_until_idle()


@pytest.mark.row("queue", "C73", "C155")
@pytest.mark.django_db(transaction=True)
def test_a_worker_killed_at_a_fail_point_leaves_what_the_crash_table_says(
    spawn: Spawner, tmp_path: Path
) -> None:
    # PostgreSQL claims by one statement and has no point inside it.
    table = {
        point: crash
        for point, crash in TABLE.items()
        if point != "claim.selected" or vendor() != "postgresql"
    }
    nursery = Nursery(spawn, tmp_path)
    jobs, after, codes = {}, {}, {}
    for point, crash in table.items():
        jobs[point] = prepare(point, crash)
        codes[point], output = nursery.worker(
            [*WORKER[1:], "--queues", queue_of(point), *crash.options],
            failpoints=f"{point}=kill",
            term_at=f"act {jobs[point]} attempt 1 starts" if crash.options == AT_ONCE else "",
        )
        assert codes[point] == -signal.SIGKILL, (point, output)
        after[point] = look(jobs[point])
    nursery.close()
    assert after == {point: crash.after for point, crash in table.items()}
    Job.objects.update(payload={"do": "end"})
    finish(*map(queue_of, table))
    assert {point: look(job) for point, job in jobs.items()} == {
        point: crash.end for point, crash in table.items()
    }
    for stored in Job.objects.filter(state="succeeded"):
        assert stored.result == f"attempt {stored.attempt}"


def test_every_fail_point_has_a_test_of_its_crash() -> None:
    of_runs = {name for name in failpoints.POINTS if name.startswith(("step.", "run."))}
    assert set(TABLE) | CALLERS_POINTS | of_runs == failpoints.POINTS  # those: chaos/runs
    assert not set(TABLE) & CALLERS_POINTS


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


@pytest.mark.row("queue", "C118")
@pytest.mark.django_db(transaction=True)
def test_an_operator_killed_in_a_bulk_retry_has_revived_whole_chunks(spawn: Spawner) -> None:
    s.fill(1_500, "dead", kind="tests.quick")
    run_script(spawn, "retry_jobs(Job.objects.filter(state='dead'))", "bulk.chunk")
    assert Job.objects.filter(state="ready", revivals=1).count() == 1_000
    assert Job.objects.filter(state="dead", revivals=0).count() == 500
    assert retry_jobs(Job.objects.filter(state="dead")).changed == 500
    assert Job.objects.filter(state="ready", revivals=1).count() == 1_500


@pytest.mark.row("queue", "C120")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("point", ["prune.selected", "prune.deleted"])
def test_a_prune_that_is_killed_has_deleted_whole_batches_and_is_begun_again(
    spawn: Spawner, point: str
) -> None:
    s.fill(1_500, "dead", kind="tests.quick", ahead=f"-{100 * 86_400} - n")
    child = spawn(["gnl_prune"], failpoints={point: "kill@2"})
    assert child.wait() == -signal.SIGKILL, child.output()
    assert Job.objects.count() == 500
    assert spawn(["gnl_prune"]).wait() == 0
    assert not Job.objects.exists()


# stopped, not killed


@pytest.mark.row("queue", "C77")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("point", ["handler.returned", "complete.begin"])
def test_a_worker_stopped_past_its_lease_writes_nothing_when_it_goes_on(
    spawn: Spawner, point: str
) -> None:
    job_id = enqueue(ACT, {"do": "end"})
    # Its lease is long, so that no renewal is stopped half way: on SQLite that would hold the file.
    zombie = spawn(WORKER, failpoints={point: "stop@1"})
    zombie.wait_stopped()
    assert look(job_id) == HELD
    finish("default")
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
