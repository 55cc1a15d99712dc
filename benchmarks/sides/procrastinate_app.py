"""procrastinate through its Django app: `defer` on Django's connection, an asynchronous worker.

Its app imports this module for the task (PROCRASTINATE_IMPORT_PATHS), `benchmarks.producer` for the
side.
"""

from collections.abc import Sequence

import django
from django.apps import apps

if not apps.ready:
    django.setup()

from django.core.management import call_command
from django.db import connection
from procrastinate.contrib.django import app  # type: ignore[import-not-found,unused-ignore]

from benchmarks.hits import hit
from benchmarks.sides.base import Side

KIND = "bench.noop"
# without the triggers: a notice and an event for each of 300,000 rows is not what is measured
SEED = (
    "ALTER TABLE procrastinate_jobs DISABLE TRIGGER USER",
    "INSERT INTO procrastinate_jobs (queue_name, task_name, args, status, attempts)"
    f" SELECT 'default', '{KIND}', '{{{{\"number\": -1}}}}', 'succeeded', 1"
    " FROM generate_series(1, {finished})",
    "INSERT INTO procrastinate_jobs (queue_name, task_name, args, scheduled_at)"
    f" SELECT 'default', '{KIND}', '{{{{\"number\": -1}}}}', now() + interval '1 day'"
    " FROM generate_series(1, {scheduled})",
    "ALTER TABLE procrastinate_jobs ENABLE TRIGGER USER",
)
UNFINISHED = (
    "SELECT count(*) FROM procrastinate_jobs"
    " WHERE status <> 'succeeded' AND (scheduled_at IS NULL OR scheduled_at <= now())"
)


@app.task(name=KIND)  # type: ignore[untyped-decorator,unused-ignore]
async def noop(number: int) -> None:
    """Leave the counted line, nothing else."""
    hit(number)


class Procrastinate(Side):
    """The peer's producer."""

    def prepare(self) -> None:
        call_command("migrate", verbosity=0)

    def reset(self) -> None:
        self._execute("TRUNCATE procrastinate_jobs RESTART IDENTITY CASCADE")

    def enqueue(self, number: int) -> None:
        noop.defer(number=number)

    def enqueue_many(self, numbers: Sequence[int]) -> None:
        noop.batch_defer(*({"number": number} for number in numbers))

    def seed(self, finished: int, scheduled: int) -> None:
        for statement in SEED:
            self._execute(statement.format(finished=finished, scheduled=scheduled))

    def unfinished(self) -> int:
        with connection.cursor() as cursor:
            cursor.execute(UNFINISHED)
            return int(cursor.fetchone()[0])

    def _execute(self, statement: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(statement)


SIDE = Procrastinate
