"""django-tasks-db: the database backend of Django 6's tasks. One task at a time, no bulk call.

Imported by `benchmarks.producer` and, for the task below, by its own `db_worker` command; both in
the environment that benchmarks/venv.py makes.
"""

from collections.abc import Sequence

import django
from django.apps import apps

if not apps.ready:
    django.setup()

from django.core.management import call_command
from django.db import connection
from django.tasks import task  # type: ignore[import-not-found,unused-ignore]
from django_tasks_db.models import DBTaskResult  # type: ignore[import-not-found,unused-ignore]

from benchmarks.hits import hit
from benchmarks.sides.base import Side, clone_sql

TABLE = DBTaskResult._meta.db_table
COLUMNS = [field.column for field in DBTaskResult._meta.fields]
# the backend writes this date for "as soon as possible"
SOON = "run_after <= now() OR run_after > '9000-01-01'"
TEMPLATE = "args_kwargs->'args'->>0 = '-1'"


@task()
def noop(number: int) -> None:
    """Leave the counted line, nothing else."""
    hit(number)


class DjangoTasks(Side):
    """The peer's producer."""

    def prepare(self) -> None:
        call_command("migrate", verbosity=0)

    def reset(self) -> None:
        self._execute(f'TRUNCATE "{TABLE}"')

    def enqueue(self, number: int) -> None:
        noop.enqueue(number)

    def load(self, numbers: Sequence[int], orgs: int = 0) -> None:
        # rows copied from a real one: thirty thousand single enqueues would take half a minute
        self._clone(len(numbers), {"args_kwargs": _arguments(f"g + {numbers[0]}")})

    def seed(self, finished: int, scheduled: int) -> None:
        arguments = _arguments("-2")
        self._clone(
            finished,
            {"args_kwargs": arguments, "status": "'SUCCESSFUL'", "finished_at": "now()"},
        )
        tomorrow = {"args_kwargs": arguments, "run_after": "now() + interval '1 day'"}
        self._clone(scheduled, tomorrow)

    def unfinished(self) -> int:
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT count(*) FROM \"{TABLE}\" WHERE status <> 'SUCCESSFUL' AND ({SOON})"
            )
            return int(cursor.fetchone()[0])

    def _clone(self, count: int, values: dict[str, str]) -> None:
        noop.enqueue(-1)
        values = {
            "id": "gen_random_uuid()",
            "enqueued_at": "now() + g * interval '1 microsecond'",
            **values,
        }
        self._execute(clone_sql(TABLE, COLUMNS, values, TEMPLATE, count))
        self._execute(f'DELETE FROM "{TABLE}" WHERE {TEMPLATE}')

    def _execute(self, statement: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(statement)


def _arguments(number: str) -> str:
    return f"jsonb_build_object('args', jsonb_build_array({number}), 'kwargs', '{{}}'::jsonb)"


SIDE = DjangoTasks
