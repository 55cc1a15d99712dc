"""`gnl_status`: numbers of each queue, what is late, what the database may lose, the exit code."""

import json
from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection

from gnl_django import JobKind
from gnl_django.core import db, fleet
from gnl_django.core import health as database
from gnl_django.core.db import now
from gnl_django.core.fleet import Numbers
from gnl_django.models import Job, QueueState
from gnl_django.queue import health
from gnl_django.queue.store import counts
from tests.conformance.conftest import Declare, MakeWorker
from tests.conformance.helpers import fail, running
from tests.support import vendor

pytestmark = pytest.mark.django_db(transaction=True)

Kind = JobKind[Any]


def show(*arguments: str) -> str:
    """Return what the command prints."""
    out = StringIO()
    call_command("gnl_status", *arguments, stdout=out)
    return out.getvalue()


def told(*arguments: str) -> dict[str, Any]:
    """Return what the command tells as JSON."""
    found: dict[str, Any] = json.loads(show("--json", *arguments))
    return found


def age(job_id: int, **past: int) -> None:
    """Make a job's run_at lie in the past."""
    Job.objects.filter(id=job_id).update(run_at=now("default") - timedelta(**past))


@pytest.fixture
def unlossy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a database that loses nothing: the tests' own has no fsync."""
    monkeypatch.setattr(db, "lossy_settings", lambda using: [])


@pytest.fixture(autouse=True)
def staff() -> None:
    """Have a live worker of all queues and kinds of these tests."""
    queues, kinds = ("default", "mail", "other", "slow"), ("t.plain", "t.fails")
    fleet.enter("default", "staff", "worker", queues, Numbers(kinds=kinds))


def test_each_queue_has_its_numbers(
    declare: Declare, make_worker: MakeWorker, unlossy: None
) -> None:
    kind = declare("t.plain")
    declare("t.fails", fail, max_attempts=1).enqueue(queue="mail")
    kind.enqueue(queue="other")
    make_worker(("mail", "other")).run_until_idle()
    kind.enqueue_many(range(3), queue="mail")
    kind.enqueue_many(range(2), delay=60)
    running(kind.enqueue(queue="slow"))
    oldest = Job.objects.filter(state="ready", queue="mail").order_by("run_at").first()
    assert oldest is not None
    found = told()
    nothing = {"scheduled": 0, "ready": 0, "running": 0, "dead": 0, "oldest_ready": None}
    assert found["queues"] == [
        {**nothing, "queue": "default", "scheduled": 2},
        {
            **nothing,
            "queue": "mail",
            "ready": 3,
            "dead": 1,
            "oldest_ready": oldest.run_at.isoformat(),
        },
        {**nothing, "queue": "slow", "running": 1},
    ]
    assert (found["healthy"], found["warnings"]) == (True, [])
    lines = show("--check").splitlines()
    assert lines[0].split() == ["queue", "scheduled", "ready", "running", "dead", "oldest", "ready"]
    assert lines[2].split()[:5] == ["mail", "0", "3", "0", "1"]
    assert lines[-1] == "healthy"


def test_an_empty_table_is_healthy(unlossy: None) -> None:
    assert told("--check")["queues"] == []
    assert show().splitlines()[-1] == "healthy"


def test_a_count_stops_at_its_bound(
    kind: Kind, monkeypatch: pytest.MonkeyPatch, unlossy: None
) -> None:
    monkeypatch.setattr(counts, "MOST", 3)
    monkeypatch.setattr(health, "MOST", 3)
    kind.enqueue_many(range(5))
    kind.enqueue_many(range(3), delay=60)
    assert [(q.ready, q.scheduled) for q in health.numbers("default")] == [(4, 3)]
    assert show().splitlines()[1].split()[:3] == ["default", "3", "3+"]


def test_a_ready_job_that_waits_too_long_is_unhealthy(
    kind: Kind, settings: Any, unlossy: None
) -> None:
    settings.GNL = {"STUDIO_ALERT_AGE": 600}
    age(kind.enqueue(), minutes=9)
    assert told("--check")["healthy"] is True
    age(kind.enqueue(), minutes=12)
    with pytest.raises(SystemExit) as ended:
        show("--check")
    assert ended.value.code == 1
    assert [warning["text"] for warning in told()["warnings"]] == [
        "Queue default: the oldest ready job waits 12 min (limit 10 min)."
    ]
    assert "UNHEALTHY: Queue default" in show()
    assert "healthy" not in show().splitlines()


def test_a_queue_may_have_a_limit_of_its_own_and_a_paused_one_is_not_late(
    kind: Kind, unlossy: None
) -> None:
    row = QueueState.objects.create(queue="default", alert_age=3_600, changed_at=now("default"))
    age(kind.enqueue(), minutes=30)
    assert told()["warnings"] == []
    row.alert_age, row.paused_at = 60, now("default")
    row.paused_by, row.pause_reason = "ada", "vendor down"
    row.save()
    (warning,) = told("--check")["warnings"]
    assert warning["code"] == "paused"
    assert warning["text"].startswith("Queue default is paused by ada since 20")
    assert warning["text"].endswith(": vendor down.")


def test_ready_jobs_that_nobody_will_take_are_told(kind: Kind, unlossy: None) -> None:
    kind.enqueue(queue="deserted")
    with pytest.raises(SystemExit):
        show("--check")
    (warning,) = told()["warnings"]
    assert (warning["code"], warning["unhealthy"]) == ("no_worker", True)
    assert warning["text"] == "No live worker serves queue deserted: 1 job is ready."


def test_jobs_that_no_worker_promotes_or_takes_back_are_told(kind: Kind, unlossy: None) -> None:
    age(kind.enqueue(delay=60), hours=3)
    running(kind.enqueue(), lease=-timedelta(minutes=5))
    texts = {warning["code"]: warning["text"] for warning in told()["warnings"]}
    assert texts == {
        "overdue": "A scheduled job is due for 3 h and no worker has made it ready (limit 5 min).",
        "lease": "A lease ran out 5 min ago and no worker has taken the job back.",
    }


@pytest.mark.row("reliability", "F27")
def test_settings_under_which_commits_may_be_lost_are_told_and_are_not_unhealthy() -> None:
    # The tests' own databases wait for no disk.
    name = {
        "postgresql": "fsync = off",
        "mysql": "innodb_flush_log_at_trx_commit",
        "sqlite": "synchronous = 0",
    }[vendor()]
    assert any(setting.startswith(name) for setting in db.lossy_settings("default"))
    found = told("--check")
    assert found["healthy"] is True
    assert any(name in warning["text"] for warning in found["warnings"])


@pytest.mark.row("reliability", "F27")
@pytest.mark.sqlite("the setting is the connection's own")
@pytest.mark.parametrize(("level", "safe"), [("NORMAL", False), ("FULL", True), ("EXTRA", True)])
def test_sqlite_is_safe_from_full_on(level: str, safe: bool) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"PRAGMA synchronous={level}")
    try:
        assert (database.warnings("default") == []) is safe
    finally:
        connection.close()


@pytest.mark.row("reliability", "F27")
@pytest.mark.postgres("the setting is the session's own")
@pytest.mark.parametrize(("level", "safe"), [("off", False), ("on", True), ("local", True)])
def test_postgresql_is_safe_while_a_commit_waits_for_the_disk(level: str, safe: bool) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET synchronous_commit = {level}")
    try:
        found = [s for s in db.lossy_settings("default") if "synchronous_commit" in s]
        assert (found == []) is safe
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-5, "0 s"), (40, "40 s"), (119, "119 s"), (720, "12 min"), (7_200, "2 h"), (864_000, "10 d")],
)
def test_a_length_of_time_is_told_in_one_unit(seconds: int, words: str) -> None:
    assert health.span(timedelta(seconds=seconds)) == words


def test_the_reads_are_few_whatever_the_number_of_jobs(
    kind: Kind, django_assert_max_num_queries: Callable[..., Any]
) -> None:
    kind.enqueue_many(range(50), org="a")
    kind.enqueue_many(range(50), org="b", delay=60)
    with django_assert_max_num_queries(14):
        health.warnings("default")
