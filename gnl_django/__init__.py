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
    from gnl_django.queue.metrics import WorkerMetrics
    from gnl_django.queue.operator import BulkResult, cancel_job, retry_job, retry_jobs
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
    "NewJob": "gnl_django.queue.options",
    "PermanentFailure": "gnl_django.errors",
    "QueueDepthExceeded": "gnl_django.errors",
    "UnknownKind": "gnl_django.errors",
    "Worker": "gnl_django.queue.worker",
    "WorkerMetrics": "gnl_django.queue.metrics",
    "cancel_job": "gnl_django.queue.operator",
    "drain_worker": "gnl_django.core.fleet",
    "enqueue": "gnl_django.queue.api",
    "enqueue_many": "gnl_django.queue.api",
    "job": "gnl_django.queue.kinds",
    "pause_queue": "gnl_django.queue.pauses",
    "resume_queue": "gnl_django.queue.pauses",
    "resume_worker": "gnl_django.core.fleet",
    "retry_job": "gnl_django.queue.operator",
    "retry_jobs": "gnl_django.queue.operator",
}

__all__ = [
    "BulkResult",
    "ExecutionRevoked",
    "GnlError",
    "InvalidPayload",
    "JobContext",
    "JobKind",
    "NewJob",
    "PermanentFailure",
    "QueueDepthExceeded",
    "UnknownKind",
    "Worker",
    "WorkerMetrics",
    "cancel_job",
    "drain_worker",
    "enqueue",
    "enqueue_many",
    "job",
    "pause_queue",
    "resume_queue",
    "resume_worker",
    "retry_job",
    "retry_jobs",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)
