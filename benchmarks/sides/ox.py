"""django-ox: a backend of django.tasks with threads, retries and a bulk call.

Imported by `benchmarks.producer` and, for the task, by its own `ox_worker`.
"""

from collections.abc import Sequence

import django
from django.apps import apps

if not apps.ready:
    django.setup()

from django.core.management import call_command
from django.db import connection
from django.tasks import task  # type: ignore[import-not-found,unused-ignore]
from django_ox.bulk import enqueue_many  # type: ignore[import-not-found,unused-ignore]
from django_ox.models import OxTask  # type: ignore[import-not-found,unused-ignore]

from benchmarks.hits import hit
from benchmarks.sides.base import Side, clone_sql

TABLE = OxTask._meta.db_table
COLUMNS = [field.column for field in OxTask._meta.concrete_fields]
TEMPLATE = "args->>0 = '-1'"
NEW = {"id": "gen_random_uuid()", "args": "'[-2]'"}


@task()
def noop(number: int) -> None:
    """Leave the counted line, nothing else."""
    hit(number)


class Ox(Side):
    """The peer's producer."""

    def prepare(self) -> None:
        call_command("migrate", verbosity=0)

    def reset(self) -> None:
        self._execute(f'TRUNCATE "{TABLE}" CASCADE')

    def enqueue(self, number: int) -> None:
        noop.enqueue(number)

    def enqueue_many(self, numbers: Sequence[int]) -> None:
        enqueue_many(noop, [((number,), {}) for number in numbers])

    def seed(self, finished: int, scheduled: int) -> None:
        noop.enqueue(-1)
        done = {**NEW, "status": "'SUCCESSFUL'", "finished_at": "now()", "attempts": "1"}
        later = {**NEW, "run_after": "now() + interval '1 day'"}
        self._execute(clone_sql(TABLE, COLUMNS, done, TEMPLATE, finished))
        self._execute(clone_sql(TABLE, COLUMNS, later, TEMPLATE, scheduled))
        self._execute(f'DELETE FROM "{TABLE}" WHERE {TEMPLATE}')

    def unfinished(self) -> int:
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT count(*) FROM \"{TABLE}\" WHERE status <> 'SUCCESSFUL'"
                " AND (run_after IS NULL OR run_after <= now() + interval '1 hour')"
            )
            return int(cursor.fetchone()[0])

    def _execute(self, statement: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(statement)


SIDE = Ox
