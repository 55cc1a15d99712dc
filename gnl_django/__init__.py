"""Durable background work for Django, in your own database.

The public names, loaded when first used (PEP 562), so that `import gnl_django` is free before
Django's apps are ready.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from gnl_django.core.fleet import drain_worker, resume_worker
    from gnl_django.errors import (
        ExecutionRevoked,
        GnlError,
        InvalidPayload,
        PermanentFailure,
        QueueDepthExceeded,
        UnknownKind,
    )
    from gnl_django.queue.api import enqueue, enqueue_many
    from gnl_django.queue.context import JobContext
    from gnl_django.queue.kinds import JobKind, job
    from gnl_django.queue.listing import JobSummary, Page, list_all_jobs, list_jobs
    from gnl_django.queue.metrics import WorkerMetrics
    from gnl_django.queue.once import run_handler_once
    from gnl_django.queue.operator import (
        BulkResult,
        cancel_job,
        discard_job,
        retry_job,
        retry_jobs,
        run_job_now,
    )
    from gnl_django.queue.options import NewJob
    from gnl_django.queue.pauses import pause_queue, resume_queue
    from gnl_django.queue.worker import Worker

_HOMES = {
    "BulkResult": "gnl_django.queue.operator",
    "ExecutionRevoked": "gnl_django.errors",
    "GnlError": "gnl_django.errors",
    "InvalidPayload": "gnl_django.errors",
    "JobContext": "gnl_django.queue.context",
    "JobKind": "gnl_django.queue.kinds",
    "JobSummary": "gnl_django.queue.listing",
    "NewJob": "gnl_django.queue.options",
    "Page": "gnl_django.queue.listing",
    "PermanentFailure": "gnl_django.errors",
    "QueueDepthExceeded": "gnl_django.errors",
    "UnknownKind": "gnl_django.errors",
    "Worker": "gnl_django.queue.worker",
    "WorkerMetrics": "gnl_django.queue.metrics",
    "cancel_job": "gnl_django.queue.operator",
    "discard_job": "gnl_django.queue.operator",
    "drain_worker": "gnl_django.core.fleet",
    "enqueue": "gnl_django.queue.api",
    "enqueue_many": "gnl_django.queue.api",
    "job": "gnl_django.queue.kinds",
    "list_all_jobs": "gnl_django.queue.listing",
    "list_jobs": "gnl_django.queue.listing",
    "pause_queue": "gnl_django.queue.pauses",
    "resume_queue": "gnl_django.queue.pauses",
    "resume_worker": "gnl_django.core.fleet",
    "retry_job": "gnl_django.queue.operator",
    "retry_jobs": "gnl_django.queue.operator",
    "run_handler_once": "gnl_django.queue.once",
    "run_job_now": "gnl_django.queue.operator",
}

__all__ = [
    "BulkResult",
    "ExecutionRevoked",
    "GnlError",
    "InvalidPayload",
    "JobContext",
    "JobKind",
    "JobSummary",
    "NewJob",
    "Page",
    "PermanentFailure",
    "QueueDepthExceeded",
    "UnknownKind",
    "Worker",
    "WorkerMetrics",
    "cancel_job",
    "discard_job",
    "drain_worker",
    "enqueue",
    "enqueue_many",
    "job",
    "list_all_jobs",
    "list_jobs",
    "pause_queue",
    "resume_queue",
    "resume_worker",
    "retry_job",
    "retry_jobs",
    "run_handler_once",
    "run_job_now",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)
