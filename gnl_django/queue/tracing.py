"""The span of an attempt: its attributes at the start, what became of it at the end (queue.md R53).

Made by `queue.passes` when the project traces, entered by the slot, ended when the outcome has been
written or given up. No span holds a payload; the words of a sensitive kind's exception stay out.
"""

import json
from typing import TYPE_CHECKING

from gnl_django.core import telemetry
from gnl_django.core.telemetry import Span
from gnl_django.queue.store.base import ClaimedRow, Outcome

if TYPE_CHECKING:
    from gnl_django.queue.execution import Execution

NAME = "queue.runJob"


def span_of(row: ClaimedRow, worker: str) -> Span:
    """Return the span of the attempt for which `worker` has claimed `row`, not begun yet."""
    traced = telemetry.TRACEPARENT in row.meta
    return Span(
        NAME,
        {
            "abs.job.id": row.id,
            "abs.job.kind": row.kind,
            "abs.job.attempt": row.attempt - 1,
            "abs.job.max_attempts": row.max_attempts,
            "abs.worker.id": worker,
        },
        traceparent=json.loads(row.meta).get(telemetry.TRACEPARENT) if traced else None,
    )


def end_span(execution: "Execution", state: str | None) -> None:
    """End the span of an attempt whose job is now `state`, None when the claim was lost.

    OK on success, ERROR with the exception on a failure; unset on all else: an invalid payload, a
    cancel, a deferral, a job given back or lost.
    """
    span, outcome = execution.span, execution.outcome
    if span is None:
        return
    if state == "succeeded":
        span.end(ok=True)
    elif state in {None, "canceled"} or outcome is None or not _failed(outcome):
        span.end()
    else:
        name = outcome.error_class.removeprefix("builtins.")
        if execution.kind.sensitive:
            span.end(ok=False, error=name, exception={"exception.type": name})
            return
        words = outcome.error.partition(": ")[2]
        exception = {"exception.type": name, "exception.message": words}
        exception["exception.stacktrace"] = outcome.traceback
        span.end(ok=False, error=outcome.error, exception=exception)


def _failed(outcome: Outcome) -> bool:
    return outcome.recorded in {"failed", "timeout"}
