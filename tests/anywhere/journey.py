"""A project's day with the queue, while a worker runs in another process: `journey.main(alias)`.

Run in a child under the configuration in question (tests.anywhere.settings): everything that a
project does with the queue is done once, against a real worker. Any surprise ends it with 1.
"""

import io
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.core.management import call_command
from django.db import connections, transaction
from django.test import Client

from gnl_django import (
    NewJob,
    QueueDepthExceeded,
    cancel_job,
    enqueue,
    enqueue_many,
    list_jobs,
    pause_queue,
    resume_queue,
    retry_job,
    retry_jobs,
)
from gnl_django.core.db import now
from gnl_django.models import Attempt, Job, Process
from tests.support import wait_until

PATIENCE = 60.0


class Journey:
    """The calls of one project; `alias` None: the queue is where GNL["DATABASE"] says."""

    def __init__(self, alias: str | None, stored_in: str) -> None:
        self.given: dict[str, Any] = {} if alias is None else {"using": alias}
        self.database = [] if alias is None else [f"--database={alias}"]
        self.using = stored_in
        self.told_to_stop = 0

    def job(self, job_id: int) -> Job:
        return Job.objects.using(self.using).get(id=job_id)

    def ends(self, job_id: int, state: str = "succeeded") -> Job:
        """Wait until a job has ended in `state`; return it."""

        def ended() -> bool:
            return self.job(job_id).finished_at is not None

        wait_until(ended, PATIENCE, describe=lambda: vars(self.job(job_id)))
        job = self.job(job_id)
        assert job.state == state, (job.state, job.error)
        return job

    def starts(self, job_id: int) -> None:
        wait_until(lambda: self.job(job_id).state == "running", PATIENCE)

    def command(self, name: str, *args: object) -> str:
        """Run a command and return what it printed."""
        out = io.StringIO()
        call_command(name, *map(str, args), *self.database, stdout=out)
        return out.getvalue()

    # what a project does

    def give(self) -> None:
        """Enqueue in every way; what is rolled back was never there."""
        began = datetime.now(UTC)  # noqa: TID251 - a project's own clock
        one = enqueue("tests.quick", 1, org="acme", **self.given)
        many = enqueue_many([NewJob("tests.quick", n) for n in range(5)], **self.given)
        key = enqueue("tests.quick", 7, key="once", **self.given)
        assert enqueue("tests.quick", 8, key="once", **self.given) == key
        later = enqueue("tests.quick", 9, run_at=began + timedelta(days=1), **self.given)
        soon = enqueue("tests.quick", 10, delay=0.1, **self.given)
        with transaction.atomic(using=self.using):
            inside = enqueue("tests.quick", 11, **self.given)
        with transaction.atomic(using=self.using):
            undone = enqueue("tests.quick", 12, **self.given)
            transaction.set_rollback(True, using=self.using)
        for job_id in (one, *many, key, soon, inside):
            self.ends(job_id)
        assert not Job.objects.using(self.using).filter(id=undone).exists()
        waiting = self.job(later)
        assert waiting.state == "scheduled"
        assert waiting.run_at == began + timedelta(days=1)
        assert abs(now(self.using) - self.job(one).enqueued_at) < timedelta(minutes=5)
        assert self.job(one).enqueued_at.utcoffset() == timedelta(0)
        full = {"org": "full", "delay": 90, "max_depth": 2, **self.given}
        for n in range(2):
            enqueue("tests.quick", n, **full)
        with pytest.raises(QueueDepthExceeded):
            enqueue("tests.quick", 2, **full)

    def handle(self) -> None:
        """Handlers use the database, threads and coroutines alike; one fails first."""
        wrote = enqueue("anywhere.write", "by a thread", org="acme", **self.given)
        other = enqueue("anywhere.write_async", "by a coroutine", **self.given)
        assert self.ends(wrote).attempt == 2
        self.ends(other)
        names = ("by a thread", "by a coroutine")
        assert Group.objects.filter(name__in=names).count() == 2
        attempt = Attempt.objects.using(self.using).get(job_id=wrote)
        assert attempt.outcome == "failed"
        assert attempt.started_at <= attempt.finished_at
        # The first attempt's transaction was rolled back; where it held the child too, so was that.
        children = Job.objects.using(self.using).filter(kind="anywhere.child", org="acme")
        assert children.count() == (1 if self.using == "default" else 2)

    def operate(self) -> None:
        """Cancel, retry, pause, list."""
        self.told_to_stop = enqueue("anywhere.wait", **self.given)
        self.starts(self.told_to_stop)
        assert cancel_job(self.told_to_stop, "enough", **self.given)
        dead = enqueue("anywhere.fail", **self.given)
        self.ends(dead, "dead")
        assert retry_job(dead, **self.given) == dead
        assert self.ends(dead, "dead").revivals == 1
        rows = Job.objects.filter(kind="anywhere.fail")  # wherever a router would read
        assert retry_jobs(rows if not self.given else [dead], **self.given).changed == 1
        self.ends(dead, "dead")
        assert pause_queue("low", **self.given)
        held = enqueue("tests.quick", 1, queue="low", **self.given)
        assert cancel_job(held, **self.given)
        assert resume_queue("low", **self.given)
        ids = [item.id for item in list_jobs(org="acme", **self.given).items]
        assert len(ids) == len(set(ids)) >= 3

    def command_line(self) -> None:
        """The commands, with --database where the alias was given by name."""
        dead = Job.objects.using(self.using).get(kind="anywhere.fail").id
        self.command("gnl_retry", dead)
        self.ends(dead, "dead")
        waiting = enqueue("tests.quick", 1, delay=60, **self.given)
        self.command("gnl_cancel", waiting, "--reason", "no need")
        assert self.job(waiting).cancel_reason == "no need"
        assert "low" in self.command("gnl_queue", "pause", "low") + self.command(
            "gnl_queue", "resume", "low"
        )
        status = json.loads(self.command("gnl_status", "--json"))
        assert status["healthy"], status
        assert not [w for w in status["warnings"] if "serve" in w["text"]], status
        self.command("gnl_prune")
        (process,) = Process.objects.using(self.using).filter(stopped_at=None)
        assert abs(now(self.using) - process.seen_at) < timedelta(seconds=30)

    def admin(self) -> None:
        """The pages, for the alias of GNL["DATABASE"]."""
        if self.given:
            return
        client = Client()
        client.force_login(User.objects.create_superuser("ana"))
        dead = Job.objects.using(self.using).get(kind="anywhere.fail").id
        for path in ("", "?state=dead", f"{dead}/change/", f"{dead}/op/retry/"):
            response = client.get(f"/admin/gnl_django/job/{path}")
            assert response.status_code == 200, (path, response.status_code)
        response = client.post(f"/admin/gnl_django/job/{dead}/op/retry/")
        assert response.status_code == 302
        assert self.ends(dead, "dead").revivals >= 4

    def end(self) -> None:
        """What was told to stop hears it with the renewal of its lease."""
        assert self.ends(self.told_to_stop, "canceled").cancel_reason == "enough"


def main(alias: str | None, stored_in: str) -> None:
    """Do all of it; the name of each part is printed when it is done."""
    journey = Journey(alias, stored_in)
    for part in ("give", "handle", "operate", "command_line", "admin", "end"):
        getattr(journey, part)()
        print("done:", part, flush=True)
    connections.close_all()
