"""gnl_django as its users call it: `enqueue`, `enqueue_many`, and a `Worker` in the process.

Imported by `benchmarks.producer` with `benchmarks.settings`; runs on every database the queue has.
What only PostgreSQL is measured for is in `benchmarks.sides.gnl_rows`.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import django
from django.apps import apps

if not apps.ready:
    django.setup()

from django.core.management import call_command
from django.core.management.color import no_style
from django.db import connection

from benchmarks.app.background import noop
from benchmarks.sides.gnl_rows import Rows
from gnl_django import NewJob, Worker, enqueue_many
from gnl_django.models import Job

PIECE = 10_000
CLAIM_GAP = timedelta(microseconds=500)


class Gnl(Rows):
    """Our own producer."""

    def __init__(self) -> None:
        self.worker: Worker | None = None

    def prepare(self) -> None:
        call_command("migrate", verbosity=0)

    def reset(self) -> None:
        tables = [model._meta.db_table for model in apps.get_app_config("gnl_django").get_models()]
        statements = connection.ops.sql_flush(no_style(), tables, reset_sequences=True)
        connection.ops.execute_sql_flush(statements)

    def enqueue(self, number: int) -> None:
        noop.enqueue({"i": number})

    def enqueue_for(self, org: str, number: int) -> None:
        noop.enqueue({"i": number}, org=org)

    def enqueue_many(self, numbers: Sequence[int]) -> None:
        noop.enqueue_many([{"i": number} for number in numbers])

    def enqueue_keyed(self, numbers: Sequence[int], orgs: int) -> None:
        enqueue_many(
            [
                NewJob(noop, {"i": number}, key=f"job-{number}", org=f"org-{number % orgs}")
                for number in numbers
            ]
        )

    def backlog(self, count: int) -> None:
        """Enqueue jobs 0 .. count - 1 of one organization: not measured."""
        for at in range(0, count, PIECE):
            numbers = range(at, min(count, at + PIECE))
            noop.enqueue_many([{"i": number} for number in numbers], org="flood")

    def unfinished(self) -> int:
        # a dead job and a waiting retry are not done; only what was seeded for tomorrow is let pass
        soon = datetime.now(UTC) + timedelta(hours=1)
        jobs = Job.objects.exclude(state="succeeded")
        return jobs.exclude(state="scheduled", run_at__gt=soon).count()

    def claims_until(self, org: str, given: list[float]) -> list[int]:
        """Return for each job of `org` how many claims were made until it was in one.

        `given` are the moments (Unix time, this machine's as the server's) at which their enqueues
        had returned: then at the latest a claim could see them. A claim that was quicker than the
        return counts as one.
        """
        jobs = Job.objects.filter(org=org, started_at__isnull=False).order_by("id")
        return [
            max(1, _claims(datetime.fromtimestamp(moment, UTC), job.started_at))
            for moment, job in zip(given, jobs, strict=True)
            if job.started_at
        ]

    def start_worker(self) -> None:
        """Start a worker inside this process."""
        self.worker = Worker()
        self.worker.start()

    def stop_worker(self) -> None:
        """Stop it and wait for its end."""
        if self.worker:
            self.worker.stop(10)


def _claims(after: datetime, until: datetime) -> int:
    """Return how many claims there were between two moments, that at `until` included.

    The jobs of a claim are stamped some microseconds apart, claims follow in a millisecond or more.
    """
    found = Job.objects.filter(started_at__gt=after, started_at__lte=until)
    stamps = [job.started_at for job in found.order_by("started_at") if job.started_at]
    gaps = [later - earlier > CLAIM_GAP for earlier, later in pairwise(stamps)]
    return int(bool(stamps)) + gaps.count(True)


SIDE = Gnl
