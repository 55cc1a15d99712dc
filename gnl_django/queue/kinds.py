"""`@job`: a function becomes the handler of a kind, with its payload's type and defaults.

Imported by users' `background.py`; touches neither the database nor a thread (queue.md 3.1).
"""

import inspect
import json
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import cached_property, update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import SchemaSerializer

from gnl_django import conf
from gnl_django.core import payloads
from gnl_django.core.backoff import Delay, seconds
from gnl_django.errors import InvalidPayload, PayloadIssue
from gnl_django.queue import api, once
from gnl_django.queue import options as opt
from gnl_django.queue.store.base import ClaimedRow

Handler = TypeVar("Handler", bound=Callable[..., Any])
P = ParamSpec("P")


class JobKind(Generic[Handler]):
    """A kind of job: its name, its handler and its defaults. Calling it calls the function."""

    #: Largest result that is stored, in bytes of its JSON; None: GNL["RESULT_MAX_BYTES"] (R37).
    result_max_bytes: int | None = None
    #: Whether `finished` is to be called.
    wants_finals = False

    def __init__(
        self,
        kind: str,
        handler: Handler,
        *,
        queue: str,
        max_attempts: int | None,
        retry_delay: Delay | None,
        max_hold: float | None,
        priority: int,
        sensitive: bool,
    ) -> None:
        self.kind = kind
        self.handler = handler
        self.queue = queue
        self.retry_delay = retry_delay
        self.max_hold = max_hold
        self.priority = priority
        self.sensitive = sensitive
        self._max_attempts = max_attempts
        update_wrapper(self, handler)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.handler(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<JobKind {self.kind} {self.origin}>"

    @property
    def origin(self) -> str:
        """Module and qualified name of the handler."""
        return f"{self.handler.__module__}.{self.handler.__qualname__}"

    @property
    def max_attempts(self) -> int:
        """The kind's number of attempts, else the project's."""
        return conf.settings().MAX_ATTEMPTS if self._max_attempts is None else self._max_attempts

    def hold_of(self, row: ClaimedRow) -> float | None:
        """Return the seconds after which the handler of `row` is asked to stop, None = no limit."""
        return self.max_hold

    def finished(self, job_id: int, state: str, using: str, error: BaseException | None) -> None:
        """A job of this kind has become final and that has committed; `error` is why it is dead."""

    @cached_property
    def takes_context(self) -> bool:
        """Whether the handler wants `ctx` as its second argument."""
        return len(_positional(self.handler)) > 1

    @cached_property
    def is_async(self) -> bool:
        """Whether the handler is a coroutine function."""
        return inspect.iscoroutinefunction(self.handler)

    @cached_property
    def adapter(self) -> TypeAdapter[Any] | None:
        """The payload's type, None for any JSON (no annotation, `dict`, `Any`)."""
        first = _positional(self.handler)[0]
        hints = typing.get_type_hints(self.handler, include_extras=True)
        annotation = hints.get(first.name, Any)
        if annotation is Any or annotation is dict:
            return None
        return TypeAdapter(annotation)

    @cached_property
    def _serializer(self) -> SchemaSerializer:
        # The adapter's own would make None of a NaN under `Any`: refused is better than changed.
        assert self.adapter is not None  # noqa: S101 - only typed payloads are serialized
        return SchemaSerializer(self.adapter.core_schema, {"ser_json_inf_nan": "constants"})

    def encode(self, payload: Any, *, max_bytes: int) -> str | None:
        """Validate a payload and return its canonical JSON, None for None (queue.md R2)."""
        value = payload
        if self.adapter is not None:
            with _named(self):
                checked = self.adapter.validate_python(payload)
                value = self._serializer.to_python(checked, mode="json", warnings="error")
        if value is None:
            return None
        return payloads.encode(self.kind, value, max_bytes=max_bytes)

    def decode(self, text: str | None) -> Any:
        """Return the handler's argument from a stored payload (queue.md R38)."""
        with _named(self):
            if self.adapter is not None:
                return self.adapter.validate_json("null" if text is None else text)
            return None if text is None else json.loads(text)

    def enqueue(self, payload: Any = None, **options: Any) -> int:
        """Store one job of this kind; see `gnl_django.enqueue`."""
        return api.enqueue(self, payload, **options)

    def enqueue_many(self, payloads: Iterable[Any], **options: Any) -> list[int]:
        """Store one job of this kind for each payload; see `gnl_django.enqueue_many`."""
        using = options.pop("using", None)
        shared = opt.options_from(options)
        jobs = [opt.NewJob.with_options(self, payload, shared) for payload in payloads]
        return api.enqueue_many(jobs, using=using)

    def run_once(
        self, payload: Any = None, context: Mapping[str, Any] | None = None, validate: bool = True
    ) -> Any:
        """Run the handler once without a job; see `gnl_django.run_handler_once`."""
        return once.run_handler_once(self, payload, context=context, validate=validate)


class _named:
    """Turns pydantic's ValidationError into InvalidPayload, without values when sensitive."""

    def __init__(self, kind: "JobKind[Any]") -> None:
        self._kind = kind

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ValidationError):
            raise InvalidPayload(self._kind.kind, self._issues(error)) from None
        if isinstance(error, (TypeError, ValueError, RecursionError)):
            issue = PayloadIssue("/", "sensitive" if self._kind.sensitive else str(error)[:500])
            raise InvalidPayload(self._kind.kind, [issue]) from None

    def _issues(self, error: ValidationError) -> list[PayloadIssue]:
        # A validator's own words may repeat the value; the error's type never does.
        sensitive = self._kind.sensitive
        found = error.errors(include_url=False, include_context=False, include_input=False)
        return [
            PayloadIssue(
                "/" + "/".join(str(part) for part in issue["loc"]),
                issue["type"] if sensitive else issue["msg"],
            )
            for issue in found[: payloads.MAX_ISSUES]
        ]


def _positional(handler: Callable[..., Any]) -> list[inspect.Parameter]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p for p in inspect.signature(handler).parameters.values() if p.kind in kinds]


def job(
    kind: str,
    *,
    queue: str = "default",
    max_attempts: int | None = None,
    retry_delay: Delay | None = None,
    max_hold: float | timedelta | None = None,
    priority: int = 0,
    sensitive: bool = False,
) -> Callable[[Handler], JobKind[Handler]]:
    """Declare the handler of `kind` (queue.md 3.1).

    The decorated function takes `(payload)` or `(payload, ctx)`; the annotation of `payload` is its
    type, checked at enqueue and again before the handler runs.

    kind: 1..128 of `A-Za-z0-9_.:/-`, not beginning with `gnl.`.
    queue: the queue its jobs go to. max_attempts: attempts in all (None: GNL["MAX_ATTEMPTS"], 5).
    retry_delay: wait after a failed attempt: seconds, a timedelta, a sequence of them (the last
    repeats) or `fn(attempt, exception)`; None: 1, 2, 4 .. 300 s.
    max_hold: seconds (or timedelta) after which the handler is asked to stop; None: no limit.
    priority: -100..100, higher first among one organization's jobs.
    sensitive: payload, result and error text are hidden from people without the right to see them.

    Returns a JobKind. Raises ValueError or TypeError for a wrong argument, ImproperlyConfigured
    when other code has declared the kind.
    """
    _check_defaults(kind, queue, priority, max_attempts, retry_delay)
    hold = None if max_hold is None else seconds(max_hold)
    if hold == 0:
        raise ValueError("max_hold: 0 seconds would fail every attempt")

    def declare(handler: Handler) -> JobKind[Handler]:
        if not 1 <= len(_positional(handler)) <= 2:
            raise TypeError(f"{handler!r} must take (payload) or (payload, ctx)")
        declared = JobKind(
            kind,
            handler,
            queue=queue,
            max_attempts=max_attempts,
            retry_delay=retry_delay,
            max_hold=hold,
            priority=priority,
            sensitive=sensitive,
        )
        opt.kinds.register(kind, declared)
        return declared

    return declare


def _check_defaults(
    kind: str, queue: str, priority: int, max_attempts: int | None, delay: Delay | None
) -> None:
    opt.check_name("kind", kind, opt.KIND_MAX)
    if kind.startswith("gnl."):
        raise ValueError(f"kind: {kind!r} begins with the reserved 'gnl.'")
    opt.check_name("queue", queue, opt.QUEUE_MAX)
    opt.check_integer("priority", priority, -opt.PRIORITY_LIMIT, opt.PRIORITY_LIMIT)
    if max_attempts is not None:
        opt.check_integer("max_attempts", max_attempts, 1, opt.ATTEMPTS_LIMIT)
    _check_delay(delay)


def _check_delay(delay: Delay | None) -> None:
    if delay is None or callable(delay):
        return
    if isinstance(delay, Sequence):
        if not delay:
            raise ValueError("retry_delay: an empty sequence")
        for part in delay:
            seconds(part)
    else:
        seconds(delay)
