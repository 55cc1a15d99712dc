"""A job in a list: what may be shown of it without its payload, result or error text."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from gnl_django.queue.models import Job


@dataclass(frozen=True)
class JobSummary:
    """One job as lists and `on_error` see it (queue.md 3.4); org None when ownerless."""

    id: int
    kind: str
    state: str
    attempt: int
    max_attempts: int
    org: str | None
    queue: str
    priority: int
    run_at: datetime
    enqueued_at: datetime


COLUMNS = tuple(JobSummary.__dataclass_fields__)


def summaries(ids: Sequence[int], *, using: str) -> dict[int, JobSummary]:
    """Return the present summaries of jobs by id; one query."""
    rows = Job.objects.using(using).filter(id__in=ids).values(*COLUMNS)
    return {row["id"]: JobSummary(**{**row, "org": row["org"] or None}) for row in rows}
