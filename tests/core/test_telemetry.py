"""Spans: nothing without OpenTelemetry, one act each with it, and no harm from a broken tracer."""

import logging
import subprocess
import sys
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from gnl_django.core import telemetry
from gnl_django.core.telemetry import Span

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_without_a_provider_nothing_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    assert not telemetry.tracing()
    assert telemetry.carried() is None
    telemetry.flush()


def test_the_package_is_never_imported_by_us() -> None:
    program = (
        "import django; django.setup()\n"
        "import sys, gnl_django\n"
        "from gnl_django import Worker, enqueue, job\n"
        "from gnl_django.core import telemetry\n"
        "assert not telemetry.tracing() and telemetry.carried() is None\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_a_package_that_is_being_imported_is_not_there_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", type(sys)("opentelemetry.trace"))
    assert not telemetry.tracing()


def test_a_span_lasts_from_enter_to_leave_whenever_it_ends(spans: Any) -> None:
    assert telemetry.tracing()
    span = Span("a.b", {"abs.job.id": 3})
    span.enter()
    with trace.get_tracer("users").start_as_current_span("inside"):
        pass
    span.leave()
    assert not trace.get_current_span().get_span_context().is_valid
    outside = trace.get_tracer("users").start_span("after")
    outside.end()
    assert [found.name for found in spans.get_finished_spans()] == ["inside", "after"]
    span.end(ok=True)
    span.end(ok=False, error="a second end is none")
    inside, after, found = spans.get_finished_spans()
    assert (found.name, found.kind) == ("a.b", SpanKind.CONSUMER)
    assert dict(found.attributes) == {"abs.job.id": 3}
    assert found.status.status_code is StatusCode.OK
    assert found.end_time <= after.start_time
    assert inside.parent.span_id == found.context.span_id
    assert after.parent is None
    assert found.parent is None


def test_a_span_continues_the_trace_it_was_given_and_no_other(spans: Any) -> None:
    tracer = trace.get_tracer("users")
    with tracer.start_as_current_span("current"):
        for given in (PARENT, None, 7, "rubbish", "00-0-0-00"):
            span = Span("a.b", {}, traceparent=given)
            span.enter()
            assert telemetry.carried() is not None
            span.leave()
            span.end()
    first, *others = spans.get_finished_spans()[:-1]
    assert f"{first.context.trace_id:032x}" == PARENT[3:35]
    assert f"{first.parent.span_id:016x}" == PARENT[36:52]
    assert [other.parent for other in others] == [None] * 4


def test_a_failure_has_status_words_and_an_exception_event(spans: Any) -> None:
    span = Span("a.b", {})
    span.enter()
    span.leave()
    span.end(ok=False, error="ValueError: no", exception={"exception.type": "ValueError"})
    (found,) = spans.get_finished_spans()
    assert found.status.status_code is StatusCode.ERROR
    assert found.status.description == "ValueError: no"
    assert [event.name for event in found.events] == ["exception"]
    assert dict(found.events[0].attributes) == {"exception.type": "ValueError"}


def test_a_span_that_was_never_entered_is_none(spans: Any) -> None:
    span = Span("a.b", {})
    span.leave()
    span.end(ok=True)
    assert not spans.get_finished_spans()


class Broken:
    """A provider all of whose parts raise."""

    def get_tracer(self, *args: object) -> object:
        raise RuntimeError("broken tracer")

    def force_flush(self, timeout_millis: int) -> bool:
        raise RuntimeError("broken exporter")


def test_a_tracer_that_raises_is_logged_and_harms_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", Broken())
    span = Span("a.b", {})
    span.enter()
    span.leave()
    span.end(ok=True)
    telemetry.flush()
    told = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.message for record in told] == ["Tracing failed; the work goes on"] * 2


def test_a_processor_that_raises_at_the_end_harms_nobody(
    spans: Any, caplog: pytest.LogCaptureFixture
) -> None:
    from opentelemetry.sdk.trace import SpanProcessor

    class Hostile(SpanProcessor):
        def on_end(self, span: object) -> None:
            raise RuntimeError("no")

    provider: Any = trace.get_tracer_provider()
    provider.add_span_processor(Hostile())
    span = Span("a.b", {})
    span.enter()
    span.leave()
    span.end(ok=True)
    assert "Tracing failed" in caplog.text
    assert len(spans.get_finished_spans()) == 1


def test_what_has_ended_is_exported_when_asked(spans: Any) -> None:
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    late = InMemorySpanExporter()
    provider: Any = trace.get_tracer_provider()
    provider.add_span_processor(BatchSpanProcessor(late, schedule_delay_millis=60_000))
    span = Span("a.b", {})
    span.enter()
    span.leave()
    span.end()
    telemetry.flush()
    assert [found.name for found in late.get_finished_spans()] == ["a.b"]
