"""From the rows of a job to Django's TaskResult. Reads only (queue.md R57).

Used by the backend, by each attempt and by the signals. A result shows what is stored: a row that
somebody has edited gives an odd result, never an exception.
"""

from datetime import datetime, timedelta
from typing import Any

from django.tasks import TaskResult, TaskResultStatus, task_backends
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.base import TaskError
from django.tasks.exceptions import InvalidTaskBackend

from gnl_django.queue.store.looks import JobSeen
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


def result_of(job: JobSeen, definition: AnyTask, alias: str) -> Result:
    """Return the result of a job of the task `definition`; `alias`: the backend that is asked."""
    payload: Any = job.payload if isinstance(job.payload, dict) else {}
    backend = alias_of(job, alias)
    task = task_of(job, definition, backend)
    starts = [attempt.started_at or job.enqueued_at for attempt in job.attempts]
    workers = [attempt.worker for attempt in job.attempts]
    if job.state in {"running", "succeeded"}:
        starts.append(job.started_at or job.enqueued_at)
        workers.append(job.worker or "")
    result: Result = TaskResult(
        task=task,
        id=str(job.id),
        status=STATUS[job.state],
        enqueued_at=local(job.enqueued_at),
        started_at=local(starts[0]) if starts else None,
        last_attempted_at=local(starts[-1]) if starts else None,
        finished_at=None if job.finished_at is None else local(job.finished_at),
        args=payload.get("args", []),
        kwargs=payload.get("kwargs", {}),
        backend=backend,
        errors=errors_of(job),
        worker_ids=workers,
    )
    if job.state == "succeeded":
        object.__setattr__(result, "_return_value", job.result)
    return result


def sketch(job_id: int, task: AnyTask, state: str) -> Result:
    """Return a result with what Django's own log says of it, without a look at the row."""
    return TaskResult(
        task=task,
        id=str(job_id),
        status=STATUS[state],
        enqueued_at=None,
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=[],
        kwargs={},
        backend=task.backend,
        errors=[],
        worker_ids=[],
    )


def errors_of(job: JobSeen) -> list[TaskError]:
    """Return what went wrong, oldest first; of a dead or canceled job the last says why."""
    errors = [
        TaskError(
            exception_class_path=attempt.error_class, traceback=attempt.traceback or attempt.message
        )
        for attempt in job.attempts
        if attempt.outcome in ERRORS
    ]
    if job.state == "canceled":
        why = f"ExecutionRevoked: canceled {job.cancel_reason}".rstrip()
        errors.append(TaskError(exception_class_path=REVOKED, traceback=why))
    elif job.state == "dead" and (not errors or errors[-1].exception_class_path != job.error_class):
        errors.append(TaskError(exception_class_path=job.error_class, traceback=job.error))
    return errors


def task_of(job: JobSeen, definition: AnyTask, backend: str) -> AnyTask:
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


def _run_after(job: JobSeen, run_after: object, run_in: object) -> datetime | None:
    if isinstance(run_in, int | float):
        return local(job.enqueued_at + timedelta(seconds=run_in))
    return local(aware(datetime.fromisoformat(run_after))) if isinstance(run_after, str) else None


def alias_of(job: JobSeen, alias: str) -> str:
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
