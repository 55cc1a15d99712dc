"""Reads of one job by its id, in one short statement: what the results of tasks are made of.

Used by `queue.tasks`, at an enqueue and where somebody looks at a task; the ORM takes several times
as long to word the same question. Nothing is locked or changed here.
"""

import json
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from django.db import connections

from gnl_django.queue.store import store_for
from gnl_django.queue.store.rowwise import aware

_JOB = (
    "id", "kind", "queue", "org", "state", "priority", "payload", "meta", "key", "max_attempts",
    "worker", "cancel_reason", "result", "error_class", "error",
)  # fmt: skip
_JOB_TIMES = ("enqueued_at", "started_at", "finished_at")
_ATTEMPT = ("outcome", "error_class", "message", "traceback", "worker")


@dataclass(frozen=True, slots=True)
class AttemptSeen:
    """An attempt that did not succeed."""

    outcome: str
    error_class: str
    message: str
    traceback: str
    worker: str
    started_at: datetime | None


@dataclass(frozen=True, slots=True)
class JobSeen:
    """A job as it is stored, with its attempts that did not succeed, oldest first."""

    id: int
    kind: str
    queue: str
    org: str
    state: str
    priority: int
    payload: Any
    meta: Any
    key: str | None
    max_attempts: int
    worker: str | None
    cancel_reason: str
    result: Any
    error_class: str
    error: str
    enqueued_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    attempts: tuple[AttemptSeen, ...]


def look(using: str, job_id: int, *, token: str | None = None) -> JobSeen | None:
    """Return a job, None when it is gone; a second statement only for attempts.

    token: the claim token that it must bear.
    """
    text = _job_text(using) + (" AND j.claim_token = %s" if token else "")
    store = store_for(using)
    with store.execute(text, (job_id, token) if token else (job_id,)) as cursor:
        row = cursor.fetchone()
    if row is None:
        return None
    values: dict[str, Any] = dict(zip(_JOB, row, strict=False))
    for name in ("payload", "meta", "result"):
        values[name] = None if values[name] is None else json.loads(values[name])
    values.update((name, aware(row[len(_JOB) + at])) for at, name in enumerate(_JOB_TIMES))
    return JobSeen(**values, attempts=_attempts(using, job_id) if row[-1] else ())


def enqueued_at(using: str, job_id: int) -> datetime | None:
    """Return when a job was enqueued, None when it is gone."""
    text = f"SELECT {_time(using, 'enqueued_at')} FROM gnl_django_job WHERE id = %s"
    with store_for(using).execute(text, (job_id,)) as cursor:
        row = cursor.fetchone()
    return None if row is None else aware(row[0])


def _attempts(using: str, job_id: int) -> tuple[AttemptSeen, ...]:
    text = (
        f"SELECT {', '.join(_ATTEMPT)}, {_time(using, 'started_at')} "
        "FROM gnl_django_attempt WHERE job_id = %s ORDER BY id"
    )
    with store_for(using).execute(text, (job_id,)) as cursor:
        rows: list[Any] = cursor.fetchall()
    names = (*_ATTEMPT, "started_at")
    return tuple(
        AttemptSeen(**dict(zip(names, (*row[:-1], aware(row[-1])), strict=True))) for row in rows
    )


def _time(using: str, column: str) -> str:
    # On PostgreSQL the session's zone plays no part (queue.md 2).
    return f"{column} AT TIME ZONE 'UTC'" if connections[using].vendor == "postgresql" else column


@cache
def _job_text(using: str) -> str:
    quote = connections[using].ops.quote_name  # "key" is a reserved word on MariaDB
    columns = [f"j.{quote(name)}" for name in _JOB]
    columns += [_time(using, f"j.{name}") for name in _JOB_TIMES]
    return (
        f"SELECT {', '.join(columns)}, "
        "EXISTS (SELECT 1 FROM gnl_django_attempt a WHERE a.job_id = j.id) "
        "FROM gnl_django_job j WHERE j.id = %s"
    )
