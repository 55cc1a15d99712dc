"""gnl_django as its users call it: `enqueue`, `enqueue_many`, and a `Worker` in the process.

Imported by `benchmarks.producer` with `benchmarks.settings`; runs on every database the queue has.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import django
from django.apps import apps

if not apps.ready:
    django.setup()

from django.core.management import call_command
from django.core.management.color import no_style
from django.db import connection

from benchmarks.app.background import noop
from benchmarks.sides.base import Side, clone_sql
from gnl_django import NewJob, Worker, enqueue_many
from gnl_django.models import Job

COLUMNS = [str(field.column) for field in Job._meta.concrete_fields if not field.primary_key]
FINISHED = {
    "state": "'succeeded'",
    "attempt": "1",
    "started_at": "now()",
    "finished_at": "now()",
}
TOMORROW = {"state": "'scheduled'", "run_at": "now() + interval '1 day'"}


class Gnl(Side):
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

    def enqueue_many(self, numbers: Sequence[int]) -> None:
        noop.enqueue_many([{"i": number} for number in numbers])

    def enqueue_keyed(self, numbers: Sequence[int], orgs: int) -> None:
        enqueue_many(
            [
                NewJob(noop, {"i": number}, key=f"job-{number}", org=f"org-{number % orgs}")
                for number in numbers
            ]
        )

    def seed(self, finished: int, scheduled: int) -> None:
        template = noop.enqueue({"i": -1}, delay=3600)
        where = f"id = {template}"
        table = Job._meta.db_table
        with connection.cursor() as cursor:
            cursor.execute(clone_sql(table, COLUMNS, FINISHED, where, finished))
            cursor.execute(clone_sql(table, COLUMNS, TOMORROW, where, scheduled))
            cursor.execute(f'DELETE FROM "{table}" WHERE {where}')

    def unfinished(self) -> int:
        # a dead job and a waiting retry are not done; only what was seeded for tomorrow is let pass
        soon = datetime.now(UTC) + timedelta(hours=1)
        jobs = Job.objects.exclude(state="succeeded")
        return jobs.exclude(state="scheduled", run_at__gt=soon).count()

    def start_worker(self) -> None:
        self.worker = Worker()
        self.worker.start()

    def stop_worker(self) -> None:
        if self.worker:
            self.worker.stop(10)


SIDE = Gnl
