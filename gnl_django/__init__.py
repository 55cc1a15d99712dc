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
        BudgetExceeded,
        ExecutionRevoked,
        GnlError,
        InvalidPayload,
        NonDeterministicRun,
        PermanentFailure,
        QueueDepthExceeded,
        RunBusy,
        RunCanceled,
        RunInputMismatch,
        StaleClaim,
        StepInFlight,
        StepUnresolved,
        ToolError,
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
    from gnl_django.runs.agent import AgentResult, run_agent
    from gnl_django.runs.api import current_step, run_durable
    from gnl_django.runs.context import AsyncRunContext, RunContext
    from gnl_django.runs.control import (
        RunInfo,
        StepRow,
        cancel_run,
        get_run,
        list_steps,
        resolve_step,
    )
    from gnl_django.runs.entry import StepInfo
    from gnl_django.runs.marks import claim, frozen
    from gnl_django.runs.tools import ToolContext, tool

_HOMES = {
    "AgentResult": "gnl_django.runs.agent",
    "AsyncRunContext": "gnl_django.runs.context",
    "BudgetExceeded": "gnl_django.errors",
    "BulkResult": "gnl_django.queue.operator",
    "ExecutionRevoked": "gnl_django.errors",
    "GnlError": "gnl_django.errors",
    "InvalidPayload": "gnl_django.errors",
    "JobContext": "gnl_django.queue.context",
    "JobKind": "gnl_django.queue.kinds",
    "JobSummary": "gnl_django.queue.listing",
    "NewJob": "gnl_django.queue.options",
    "NonDeterministicRun": "gnl_django.errors",
    "Page": "gnl_django.queue.listing",
    "PermanentFailure": "gnl_django.errors",
    "QueueDepthExceeded": "gnl_django.errors",
    "RunBusy": "gnl_django.errors",
    "RunCanceled": "gnl_django.errors",
    "RunContext": "gnl_django.runs.context",
    "RunInfo": "gnl_django.runs.control",
    "RunInputMismatch": "gnl_django.errors",
    "StaleClaim": "gnl_django.errors",
    "StepInFlight": "gnl_django.errors",
    "StepInfo": "gnl_django.runs.entry",
    "StepRow": "gnl_django.runs.control",
    "StepUnresolved": "gnl_django.errors",
    "ToolContext": "gnl_django.runs.tools",
    "ToolError": "gnl_django.errors",
    "UnknownKind": "gnl_django.errors",
    "Worker": "gnl_django.queue.worker",
    "WorkerMetrics": "gnl_django.queue.metrics",
    "cancel_job": "gnl_django.queue.operator",
    "cancel_run": "gnl_django.runs.control",
    "claim": "gnl_django.runs.marks",
    "current_step": "gnl_django.runs.api",
    "discard_job": "gnl_django.queue.operator",
    "drain_worker": "gnl_django.core.fleet",
    "enqueue": "gnl_django.queue.api",
    "enqueue_many": "gnl_django.queue.api",
    "frozen": "gnl_django.runs.marks",
    "get_run": "gnl_django.runs.control",
    "job": "gnl_django.queue.kinds",
    "list_all_jobs": "gnl_django.queue.listing",
    "list_jobs": "gnl_django.queue.listing",
    "list_steps": "gnl_django.runs.control",
    "pause_queue": "gnl_django.queue.pauses",
    "resolve_step": "gnl_django.runs.control",
    "resume_queue": "gnl_django.queue.pauses",
    "resume_worker": "gnl_django.core.fleet",
    "retry_job": "gnl_django.queue.operator",
    "retry_jobs": "gnl_django.queue.operator",
    "run_agent": "gnl_django.runs.agent",
    "run_durable": "gnl_django.runs.api",
    "run_handler_once": "gnl_django.queue.once",
    "run_job_now": "gnl_django.queue.operator",
    "tool": "gnl_django.runs.tools",
}

__all__ = [
    "AgentResult",
    "AsyncRunContext",
    "BudgetExceeded",
    "BulkResult",
    "ExecutionRevoked",
    "GnlError",
    "InvalidPayload",
    "JobContext",
    "JobKind",
    "JobSummary",
    "NewJob",
    "NonDeterministicRun",
    "Page",
    "PermanentFailure",
    "QueueDepthExceeded",
    "RunBusy",
    "RunCanceled",
    "RunContext",
    "RunInfo",
    "RunInputMismatch",
    "StaleClaim",
    "StepInFlight",
    "StepInfo",
    "StepRow",
    "StepUnresolved",
    "ToolContext",
    "ToolError",
    "UnknownKind",
    "Worker",
    "WorkerMetrics",
    "cancel_job",
    "cancel_run",
    "claim",
    "current_step",
    "discard_job",
    "drain_worker",
    "enqueue",
    "enqueue_many",
    "frozen",
    "get_run",
    "job",
    "list_all_jobs",
    "list_jobs",
    "list_steps",
    "pause_queue",
    "resolve_step",
    "resume_queue",
    "resume_worker",
    "retry_job",
    "retry_jobs",
    "run_agent",
    "run_durable",
    "run_handler_once",
    "run_job_now",
    "tool",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)
