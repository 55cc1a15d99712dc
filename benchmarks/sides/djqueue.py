"""dj-queue: a backend of django.tasks after the pattern of Rails' Solid Queue, with LISTEN.

Imported by `benchmarks.producer` and, for the task, by its own worker. A job is one row for
good and one in the table of its state.
"""

from collections.abc import Sequence
from typing import Any

import django
from django.apps import apps

if not apps.ready:
    django.setup()

from dj_queue.models import (  # type: ignore[import-not-found,unused-ignore]
    BlockedExecution,
    ClaimedExecution,
    FailedExecution,
    Job,
    ReadyExecution,
    ScheduledExecution,
)
from django.core.management import call_command
from django.db import connection
from django.tasks import default_task_backend, task  # type: ignore[import-not-found,unused-ignore]

from benchmarks.hits import hit
from benchmarks.sides.base import Side, clone_sql

STATES = (ReadyExecution, ClaimedExecution, ScheduledExecution, BlockedExecution, FailedExecution)
TABLE = Job._meta.db_table
COLUMNS = [field.column for field in Job._meta.concrete_fields]
TEMPLATE = "payload::text LIKE '%-1%' AND finished_at IS NULL AND scheduled_at IS NULL"
LATER = (
    f"INSERT INTO {ScheduledExecution._meta.db_table}"
    " (job_id, backend_alias, queue_name, priority, scheduled_at, created_at)"
    f" SELECT id, backend_alias, queue_name, priority, scheduled_at, now() FROM {TABLE}"
    " WHERE scheduled_at IS NOT NULL"
)


@task()
def noop(number: int) -> None:
    """Leave the counted line, nothing else."""
    hit(number)


class DjQueue(Side):
    """The peer's producer."""

    def prepare(self) -> None:
        call_command("migrate", verbosity=0)

    def reset(self) -> None:
        tables = ", ".join(model._meta.db_table for model in (Job, *STATES))
        self._execute(f"TRUNCATE {tables} CASCADE")

    def enqueue(self, number: int) -> None:
        noop.enqueue(number)

    def enqueue_many(self, numbers: Sequence[int]) -> None:
        backend: Any = default_task_backend
        backend.enqueue_all([(noop, (number,), {}) for number in numbers])

    def seed(self, finished: int, scheduled: int) -> None:
        noop.enqueue(-1)
        new = {"id": "gen_random_uuid()"}
        later = {**new, "scheduled_at": "now() + interval '1 day'"}
        done = {**new, "finished_at": "now()"}
        self._execute(clone_sql(TABLE, COLUMNS, later, TEMPLATE, scheduled))
        self._execute(clone_sql(TABLE, COLUMNS, done, TEMPLATE, finished))
        self._execute(LATER)
        self._execute(f"TRUNCATE {ReadyExecution._meta.db_table}")
        self._execute(f"DELETE FROM {TABLE} WHERE {TEMPLATE}")

    def unfinished(self) -> int:
        waiting = sum(model.objects.count() for model in STATES if model is not ScheduledExecution)
        return int(waiting)

    def _execute(self, statement: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(statement)


SIDE = DjQueue
