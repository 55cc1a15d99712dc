"""OpenTelemetry spans, where the project uses OpenTelemetry; otherwise nothing (queue.md R53).

Used by the queue for each attempt, and by enqueue to carry the caller's trace. `tracing` is the one
question of a busy path. The package is never imported here: as long as nobody else has imported it,
there is no provider either. A tracer, sampler or exporter that fails is logged and harms no job.
"""

import logging
import sys
from collections.abc import Callable, Mapping
from time import time_ns
from typing import Any, TypeVar

from gnl_django import __version__

logger = logging.getLogger(__name__)
T = TypeVar("T")

TRACER = "gnl_django"
#: The key of Job.meta that carries W3C's trace context.
TRACEPARENT = "traceparent"
FLUSH_MS = 2_000

_tracer: tuple[object, Any] | None = None


def tracing() -> bool:
    """Tell whether the project has set a tracer provider."""
    return _provider() is not None


def _provider() -> Any:
    trace = sys.modules.get("opentelemetry.trace")
    # While another thread imports the package its names are not all there.
    find = getattr(trace, "get_tracer_provider", None)
    if trace is None or find is None:
        return None
    provider = find()
    return None if isinstance(provider, trace.ProxyTracerProvider) else provider


class Span:
    """One act as a span: `enter` and `leave` in the thread or task that acts, `end` in any.

    The span lasts from `enter` to `leave`; what became of it may be known later.
    """

    __slots__ = ("_attributes", "_left_at", "_name", "_parent", "_span", "_token")

    def __init__(
        self, name: str, attributes: Mapping[str, str | int], *, traceparent: object = None
    ) -> None:
        self._name = name
        self._attributes = attributes
        self._parent = traceparent
        self._span: Any = None
        self._token: Any = None
        self._left_at: int | None = None

    def enter(self) -> None:
        """Begin, and be the current span of this thread or task."""
        self._span = _safely(self._begin)
        if self._span is not None:
            self._token = _safely(lambda: _attach(self._span))

    def leave(self) -> None:
        """Be the current span no longer; the time counts until now."""
        self._left_at = time_ns()
        token, self._token = self._token, None
        if token is not None:
            _safely(lambda: _detach(token))

    def end(
        self, *, ok: bool | None = None, error: str = "", exception: Mapping[str, str] | None = None
    ) -> None:
        """End it, once; a span that was never entered is none.

        ok: True and False are the statuses OK and ERROR, None leaves it unset. error: words for
        ERROR. exception: attributes of an `exception` event.
        """
        span, self._span = self._span, None
        if span is not None:
            _safely(lambda: _end(span, self._left_at, ok, error, exception))

    def _begin(self) -> Any:
        return _tracer_of(_provider()).start_span(
            self._name,
            context=_context(self._parent),
            kind=sys.modules["opentelemetry.trace"].SpanKind.CONSUMER,
            attributes=dict(self._attributes),
        )


def carried() -> str | None:
    """Return the current span as W3C's `traceparent`, None without one."""
    return _safely(_carried) if tracing() else None


def flush() -> None:
    """Have the provider export what has ended: the process is about to end without its atexit."""
    call = getattr(_provider(), "force_flush", None)
    if call is not None:
        _safely(lambda: call(FLUSH_MS))


def _carried() -> str | None:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get(TRACEPARENT)


def _context(traceparent: object) -> Any:
    """Return the context of a `traceparent`; an empty one for what is none."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier = {TRACEPARENT: traceparent} if isinstance(traceparent, str) else {}
    return TraceContextTextMapPropagator().extract(carrier, context=Context())


def _tracer_of(provider: Any) -> Any:
    global _tracer
    if _tracer is None or _tracer[0] is not provider:
        _tracer = (provider, provider.get_tracer(TRACER, __version__))
    return _tracer[1]


def _attach(span: Any) -> Any:
    from opentelemetry import context, trace

    return context.attach(trace.set_span_in_context(span))


def _detach(token: Any) -> None:
    from opentelemetry import context

    context.detach(token)


def _end(
    span: Any, at: int | None, ok: bool | None, error: str, exception: Mapping[str, str] | None
) -> None:
    from opentelemetry.trace import StatusCode

    try:
        if exception is not None:
            span.add_event("exception", dict(exception), timestamp=at)
        if ok is not None:
            span.set_status(StatusCode.OK if ok else StatusCode.ERROR, error or None)
    finally:
        span.end(end_time=at)


def _safely(call: Callable[[], T]) -> T | None:
    try:
        return call()
    except Exception:
        logger.exception("Tracing failed; the work goes on")
        return None
