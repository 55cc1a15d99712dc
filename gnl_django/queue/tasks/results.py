"""From the rows of a job to Django's TaskResult. Reads only (queue.md R57).

Used by the backend, by each attempt and by the signals. A result shows what is stored: a row that
somebody has edited gives an odd result, never an exception.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db.models import Exists, OuterRef
from django.tasks import TaskResult, TaskResultStatus, task_backends
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.base import TaskError
from django.tasks.exceptions import InvalidTaskBackend

from gnl_django.queue.tasks.task import (
    AnyTask,
    GnlTask,
    Result,
    aware,
    backoff_of,
    local,
    marked,
    restored,
    timeout_of,
)

if TYPE_CHECKING:
    from gnl_django.queue.models import Attempt, Job

STATUS = {
    "scheduled": TaskResultStatus.READY,
    "ready": TaskResultStatus.READY,
    "running": TaskResultStatus.RUNNING,
    "succeeded": TaskResultStatus.SUCCESSFUL,
    "dead": TaskResultStatus.FAILED,
    "canceled": TaskResultStatus.FAILED,
}
#: The outcomes of attempts that are errors of the task; a release and a cancellation are none.
ERRORS = frozenset({"failed", "timeout", "lease_lost", "invalid"})
REVOKED = "gnl_django.errors.ExecutionRevoked"
#: What a result is made of; the rest of a row stays where it is.
COLUMNS = (
    "id", "kind", "queue", "org", "state", "priority", "payload", "meta", "key", "max_attempts",
    "worker", "cancel_reason", "result", "error_class", "error",
    "enqueued_at", "started_at", "finished_at",
)  # fmt: skip


class Stored(NamedTuple):
    """A job with its attempts that did not succeed, oldest first."""

    job: "Job"
    attempts: "Sequence[Attempt]"


def load(using: str, job_id: int, **held: str) -> Stored | None:
    """Return a job as it is stored, None when it is gone; a second statement only for attempts.

    held: columns that must have these values too.
    """
    from gnl_django.queue.models import Attempt, Job

    attempts = Attempt.objects.using(using).order_by("id")
    jobs = Job.objects.using(using).filter(pk=job_id, **held).only(*COLUMNS)
    job = jobs.annotate(tried=Exists(attempts.filter(job_id=OuterRef("pk")))).first()
    if job is None:
        return None
    return Stored(job, list(attempts.filter(job_id=job_id)) if job.tried else [])


def result_of(stored: Stored, definition: AnyTask, alias: str) -> Result:
    """Return the result of a job of the task `definition`; `alias`: the backend that is asked."""
    job, attempts = stored
    payload: Any = job.payload if isinstance(job.payload, dict) else {}
    backend = alias_of(job, alias)
    task = task_of(job, definition, backend)
    starts = [attempt.started_at for attempt in attempts]
    workers = [attempt.worker for attempt in attempts]
    if job.state in {"running", "succeeded"}:
        starts.append(job.started_at or job.enqueued_at)
        workers.append(job.worker or "")
    result: Result = TaskResult(
        task=task,
        id=str(job.pk),
        status=STATUS[job.state],
        enqueued_at=local(job.enqueued_at),
        started_at=local(starts[0]) if starts else None,
        last_attempted_at=local(starts[-1]) if starts else None,
        finished_at=None if job.finished_at is None else local(job.finished_at),
        args=payload.get("args", []),
        kwargs=payload.get("kwargs", {}),
        backend=backend,
        errors=errors_of(job, attempts),
        worker_ids=workers,
    )
    if job.state == "succeeded":
        object.__setattr__(result, "_return_value", job.result)
    return result


def errors_of(job: "Job", attempts: "Sequence[Attempt]") -> list[TaskError]:
    """Return what went wrong, oldest first; of a dead or canceled job the last says why."""
    errors = [
        TaskError(
            exception_class_path=attempt.error_class, traceback=attempt.traceback or attempt.message
        )
        for attempt in attempts
        if attempt.outcome in ERRORS
    ]
    if job.state == "canceled":
        why = f"ExecutionRevoked: canceled {job.cancel_reason}".rstrip()
        errors.append(TaskError(exception_class_path=REVOKED, traceback=why))
    elif job.state == "dead" and (not errors or errors[-1].exception_class_path != job.error_class):
        errors.append(TaskError(exception_class_path=job.error_class, traceback=job.error))
    return errors


def task_of(job: "Job", definition: AnyTask, backend: str) -> AnyTask:
    """Return the task with the options that the job was given."""
    mark = marked(job.meta)
    changes: dict[str, Any] = {
        "priority": job.priority,
        "queue_name": job.queue,
        "backend": backend,
        "run_after": _run_after(job, mark.get("run_after"), mark.get("run_in")),
    }
    if isinstance(definition, GnlTask):
        changes.update(
            max_attempts=job.max_attempts,
            backoff=backoff_of(definition, mark),
            timeout=timeout_of(definition, mark),
            key=job.key,
            org=job.org or None,
            run_in=None,
        )
    return restored(definition, **changes)


def _run_after(job: "Job", run_after: object, run_in: object) -> datetime | None:
    if isinstance(run_in, int | float):
        return local(job.enqueued_at + timedelta(seconds=run_in))
    return local(aware(datetime.fromisoformat(run_after))) if isinstance(run_after, str) else None


def alias_of(job: "Job", alias: str) -> str:
    """Return the alias by which the job was enqueued, `alias` when that is not ours any more."""
    own = marked(job.meta).get("backend")
    backend = backend_of(own) if isinstance(own, str) else None
    return backend.alias if backend is not None and is_ours(backend) else alias


def is_ours(backend: BaseTaskBackend) -> bool:
    """Tell whether a backend is a GnlBackend, known by the tasks it makes."""
    return issubclass(backend.task_class, GnlTask)


def backend_of(alias: str) -> BaseTaskBackend | None:
    """Return the backend of an alias, None when there is none."""
    try:
        backend: BaseTaskBackend = task_backends[alias]
    except InvalidTaskBackend:
        return None
    return backend
