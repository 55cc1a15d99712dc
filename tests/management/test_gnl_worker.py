"""`manage.py gnl_worker`: how it starts, ends by signals, and refuses to start (C138-C140)."""

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection

from gnl_django import enqueue, enqueue_many
from gnl_django.core import leases
from gnl_django.queue.models import Attempt, Job
from gnl_django.queue.options import NewJob
from tests.conformance.nursery import Nursery
from tests.database import with_database
from tests.procs import Spawner
from tests.support import vendor, wait_until

ACT = "tests.act"
WORKER = ["gnl_worker", "--poll", "0.05"]


def only(job_id: int) -> Job:
    return Job.objects.get(id=job_id)


# SIGTERM


@pytest.mark.row("queue", "C138")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_a_short_handler_finish(spawn: Spawner, number: signal.Signals) -> None:
    job_id = enqueue(ACT, {"do": "short"})
    worker = spawn([*WORKER, "--grace", "20"])
    worker.wait_line(f"act {job_id} attempt 1 starts")
    (worker.term if number is signal.SIGTERM else worker.interrupt)()
    assert worker.wait() == 0
    assert worker.wait_line(f"act {job_id} attempt 1 ends")
    assert (only(job_id).state, only(job_id).attempt) == ("succeeded", 1)
    assert not Attempt.objects.exists()


@pytest.mark.row("queue", "C138")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("what", ["wait", "ignore"])
def test_a_signal_gives_back_a_handler_that_outlasts_the_grace(spawn: Spawner, what: str) -> None:
    job_id = enqueue(ACT, {"do": what})
    worker = spawn([*WORKER, "--grace", "0.5"])
    worker.wait_line(f"act {job_id} attempt 1 starts")
    began = monotonic()
    worker.term()
    assert worker.wait() == 0, worker.output()
    assert monotonic() - began > 0.4
    stored = only(job_id)
    assert (stored.state, stored.attempt, stored.claim_token) == ("ready", 0, None)
    attempt = Attempt.objects.get(job=job_id)
    assert (attempt.outcome, attempt.number) == ("released", 1)
    # Whoever looks at the signal is told in time to end by itself.
    assert (f"act {job_id} attempt 1 ends" in worker.output()) == (what == "wait")


@pytest.mark.row("queue", "C138")
@pytest.mark.django_db(transaction=True)
def test_a_second_signal_ends_the_process_at_once_and_leaves_the_lease_to_expire(
    spawn: Spawner,
) -> None:
    job_id = enqueue(ACT, {"do": "ignore"})
    worker = spawn([*WORKER, "--grace", "60"])
    worker.wait_line(f"act {job_id} attempt 1 starts")
    worker.term()
    # Two that come at the same time may be seen as one: another follows until it has ended.
    wait_until(lambda: not worker.running or worker.term())
    assert worker.wait() == 0
    assert (only(job_id).state, only(job_id).attempt) == ("running", 1)
    assert not Attempt.objects.exists()


@pytest.mark.row("queue", "C138")
@pytest.mark.django_db(transaction=True)
def test_an_idle_worker_ends_at_once_on_a_signal(spawn: Spawner) -> None:
    worker = spawn([*WORKER, "--grace", "90", "--max-poll", "90"])
    job_id = enqueue(ACT, {"do": "end"})
    worker.wait_line(f"act {job_id} attempt 1 ends")
    wait_until(lambda: only(job_id).state == "succeeded")
    worker.term()
    assert worker.wait(40) == 0  # long before the grace is over


MOMENTS = 30


@pytest.mark.row("queue", "C139")
@pytest.mark.django_db(transaction=True)
def test_a_signal_at_any_moment_round_a_claim_leaves_each_row_released_or_run(
    spawn: Spawner, tmp_path: Path
) -> None:
    dice = random.Random(139)  # noqa: S311 - the same moments every time
    enqueue_many([NewJob("tests.quick", at, org=f"org-{at % 3}") for at in range(20_000)])
    sentinels = set()
    nursery = Nursery(spawn, tmp_path)
    for number in range(MOMENTS):
        first = enqueue(ACT, {"do": "end"}, queue="first")
        sentinels.add(first)
        # Claims follow one another without a pause, so that every moment is near one. Half of the
        # workers have a point armed: they claim step by step, and their COMMIT can be met.
        code, output = nursery.worker(
            ["--queues", "first,default", "--concurrency", "2", "--grace", "15"],
            failpoints="claim.updated=log@2" if number % 2 else "",
            term_at=f"act {first} attempt 1 ends",
            delay=dice.uniform(0, 0.004),
        )
        assert code == 0, output
    nursery.close()
    rows = Job.objects.exclude(id__in=sentinels)
    counts = {
        (row["state"], row["attempt"]): row["result"]
        for row in rows.values("state", "attempt", "result").distinct().order_by()
        if row["state"] != "succeeded"
    }
    assert set(counts) == {("ready", 0)}
    assert not rows.filter(state="succeeded").exclude(attempt=1).exists()
    assert rows.filter(state="succeeded").count() >= MOMENTS
    assert set(Job.objects.filter(id__in=sentinels).values_list("state", flat=True)) == {
        "succeeded"
    }
    assert set(Attempt.objects.values_list("outcome", flat=True)) <= {"released"}


# what it refuses


@pytest.fixture
def empty_database_url(database_url: str, tmp_path: Path) -> Iterator[str]:
    """Return the DATABASE_URL of a database without a table."""
    if vendor() == "sqlite":
        yield f"sqlite:///{tmp_path}/empty.sqlite3"
        return
    name = connection.ops.quote_name(f"gnl_empty_{os.getpid()}")
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
        yield with_database(database_url, name.strip('`"'))
        cursor.execute(f"DROP DATABASE {name}")


@pytest.mark.row("queue", "C140")
@pytest.mark.django_db(transaction=True)
def test_a_database_without_our_tables_is_refused_with_a_message(
    spawn: Spawner, empty_database_url: str
) -> None:
    worker = spawn(WORKER, env={"DATABASE_URL": empty_database_url})
    assert worker.wait() == 1
    assert "migrations of gnl_django are not applied on 'default': 0001_initial" in worker.output()
    assert "run `manage.py migrate` first" in worker.output()
    assert "Traceback" not in worker.output()


@pytest.mark.django_db(transaction=True)
def test_an_unreachable_database_is_waited_for_and_a_signal_ends_the_wait(
    spawn: Spawner, tmp_path: Path
) -> None:
    url = {
        "sqlite": f"sqlite:///{tmp_path}/no/such/directory/gnl.sqlite3",
        "postgresql": "postgres://nobody@127.0.0.1:1/gnl",
        "mysql": "mysql://nobody@127.0.0.1:1/gnl",
    }[vendor()]
    worker = spawn(WORKER, env={"DATABASE_URL": url})
    worker.wait_line("The database 'default' cannot be reached", count=2)
    assert worker.running
    worker.term()
    assert worker.wait() == 0
    assert "Traceback" not in worker.output()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--concurrency", "0"], "concurrency"),
        (["--ttl", "0.5"], "ttl"),
        (["--poll", "0"], "poll"),
        (["--poll", "2", "--max-poll", "1"], "max_poll"),
        (["--queues", ","], "queues"),
        (["--queues", "a b"], "queue"),
        (["--name", "a b"], "name"),
        (["--max-attempts", "0"], "max_attempts"),
        (["--max-hold", "-1"], "-1"),
        (["--kinds", "tests.nobody"], "no handler registered for kind 'tests.nobody'"),
        (["--database", "elsewhere"], "elsewhere"),
    ],
)
def test_a_wrong_option_is_named(options: list[str], message: str) -> None:
    with pytest.raises(CommandError) as refused:
        call_command("gnl_worker", *options, "--until-idle")
    assert message in str(refused.value)
    assert refused.value.returncode == 1


# what it does


@pytest.mark.django_db(transaction=True)
def test_until_idle_runs_what_is_ready_in_the_named_queues_and_ends(spawn: Spawner) -> None:
    act = {"do": "end"}
    jobs = enqueue_many(
        [
            *(NewJob(ACT, act, queue=queue) for queue in ("high", "low", "default")),
            NewJob(ACT, act, queue="high", delay=3_600),
        ]
    )
    worker = spawn(
        [*WORKER, "--queues", "high,low", "--until-idle", "--name", "mine", "--max-attempts", "3"]
    )
    assert worker.wait() == 0, worker.output()
    stored = list(Job.objects.filter(id__in=jobs).order_by("id"))
    assert [row.state for row in stored] == ["succeeded", "succeeded", "ready", "scheduled"]
    assert [row.max_attempts for row in stored] == [3, 3, 5, 5]
    assert (stored[0].worker or "").startswith("mine/")
    assert f"/{worker.pid}/" in (stored[0].worker or "")


@pytest.mark.django_db(transaction=True)
def test_only_the_named_kinds_are_run(spawn: Spawner) -> None:
    act, quick = enqueue(ACT, {"do": "end"}), enqueue("tests.quick", 1)
    worker = spawn([*WORKER, "--kinds", "tests.quick", "--until-idle"])
    assert worker.wait() == 0, worker.output()
    assert [only(act).state, only(quick).state] == ["ready", "succeeded"]


@pytest.mark.django_db(transaction=True)
def test_max_hold_asks_handlers_to_stop(spawn: Spawner) -> None:
    job_id = enqueue(ACT, {"do": "wait"}, max_attempts=1)
    worker = spawn([*WORKER, "--max-hold", "0.1", "--until-idle"])
    assert worker.wait() == 0, worker.output()
    stored = only(job_id)
    assert (stored.state, stored.error_class) == ("dead", "gnl_django.errors.ExecutionRevoked")
    assert Attempt.objects.get(job=job_id).outcome == "timeout"


@pytest.mark.django_db(transaction=True)
def test_in_this_process_the_command_runs_and_puts_the_signal_handlers_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leases, "MIN_TTL", 0.1)
    before: Any = signal.getsignal(signal.SIGTERM)
    job_id = enqueue("tests.quick", 3)
    call_command("gnl_worker", "--until-idle", "--poll=0.02", "--no-backoff", "--ttl=0.5")
    assert (only(job_id).state, only(job_id).result) == ("succeeded", 3)
    assert signal.getsignal(signal.SIGTERM) is before
