"""The span of one attempt: its attributes, and which end gives which status."""

from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.trace import StatusCode

from gnl_django import PermanentFailure
from gnl_django.queue.execution import Execution, run
from gnl_django.queue.tracing import end_span, span_of
from tests.conformance.conftest import Declare
from tests.queue.test_execution import attempt, make

__all__ = ["attempt"]

Attempt = Callable[..., Execution]


def traced(declare: Declare, handler: Callable[..., Any], **columns: Any) -> Execution:
    """Run an attempt whose span is not ended yet."""
    options = columns.pop("options", {})
    execution = make(declare("tracing.work", handler, **options), **columns)
    execution.span = span_of(execution.row, "w/host/1/abcdef")
    run(execution, lambda row: _nothing())
    return execution


class _nothing:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


def bad(payload: Any) -> None:
    raise ValueError("secret words")


def test_without_a_span_the_end_of_an_attempt_is_nothing(attempt: Attempt) -> None:
    end_span(attempt(lambda payload: None), "succeeded")


def test_the_attributes_count_the_claims_before_this_one(declare: Declare, spans: Any) -> None:
    execution = traced(declare, lambda payload: 1, attempt=3, max_attempts=7)
    end_span(execution, "succeeded")
    (span,) = spans.get_finished_spans()
    assert span.name == "queue.runJob"
    assert dict(span.attributes) == {
        "abs.job.id": 5,
        "abs.job.kind": "execution.work",
        "abs.job.attempt": 2,
        "abs.job.max_attempts": 7,
        "abs.worker.id": "w/host/1/abcdef",
    }
    assert span.status.status_code is StatusCode.OK
    assert span.parent is None


@pytest.mark.parametrize(
    "meta", ['{"a":1}', '{"traceparent":null}', '{"traceparent":["x"]}', '{"a":"traceparent"}']
)
def test_a_meta_without_a_trace_begins_one(declare: Declare, spans: Any, meta: str) -> None:
    end_span(traced(declare, lambda payload: 1, meta=meta), "succeeded")
    assert spans.get_finished_spans()[0].parent is None


def test_a_failure_tells_class_words_and_traceback(declare: Declare, spans: Any) -> None:
    end_span(traced(declare, bad), "scheduled")
    (span,) = spans.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == "ValueError: secret words"
    (event,) = span.events
    told = dict(event.attributes)
    assert told.pop("exception.stacktrace").endswith("ValueError: secret words\n")
    assert told == {"exception.type": "ValueError", "exception.message": "secret words"}


def test_a_sensitive_kinds_failure_tells_the_class_alone(declare: Declare, spans: Any) -> None:
    end_span(traced(declare, bad, options={"sensitive": True}), "dead")
    (span,) = spans.get_finished_spans()
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "ValueError")
    assert [dict(event.attributes) for event in span.events] == [{"exception.type": "ValueError"}]


@pytest.mark.parametrize("state", [None, "canceled", "dead"])
def test_an_end_that_is_nobodys_fault_leaves_the_status_unset(
    declare: Declare, spans: Any, state: str | None
) -> None:
    execution = traced(declare, bad)
    assert execution.outcome is not None
    if state == "dead":
        execution.outcome = execution.outcome._replace(recorded="invalid")
    end_span(execution, state)
    (span,) = spans.get_finished_spans()
    assert span.status.status_code is StatusCode.UNSET
    assert not span.events


def test_an_own_exception_is_named_with_its_module(declare: Declare, spans: Any) -> None:
    def bury(payload: Any) -> None:
        raise PermanentFailure("no")

    end_span(traced(declare, bury), "dead")
    (event,) = spans.get_finished_spans()[0].events
    assert event.attributes["exception.type"] == "gnl_django.errors.PermanentFailure"
