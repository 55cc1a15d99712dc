"""Helpers for the tests of a project that uses gnl_django: run its jobs, see what was enqueued.

They work inside a TestCase, where all happens in the test's own transaction and thread, and in a
TransactionTestCase, where jobs run as in production (queue.md R48). `gnl_django.pytest_plugin`
offers the same as fixtures.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from gnl_django import conf
from gnl_django.core import clock
from gnl_django.core.db import now
from gnl_django.queue import options as opt
from gnl_django.queue.kinds import JobKind
from gnl_django.queue.listing import JobSummary
from gnl_django.queue.models import Job
from gnl_django.queue.store import store_for
from gnl_django.queue.store.counts import waiting
from gnl_django.queue.worker import Worker

__all__ = [
    "ANY",
    "assert_enqueued",
    "assert_not_enqueued",
    "enqueued_jobs",
    "run_jobs",
    "set_clock",
]

#: Any payload.
ANY: Any = type("_Any", (), {"__repr__": lambda self: "ANY"})()

#: Columns by which jobs may be asked for.
FIELDS = ("org", "queue", "key", "priority", "max_attempts", "meta", "run_at", "state")


def run_jobs(
    queues: Sequence[str] | None = None,
    *,
    raising: bool = True,
    using: str | None = None,
    **options: Any,
) -> int:
    """Run everything that is ready, and what that enqueues, until nothing is; return the number.

    queues: only these (None: every queue). raising: raise the first exception of a handler when
    all have run; with False a failure is what it is in production: the job is retried later or
    dead. Jobs that wait for a later time, retries too, run once `set_clock` has passed it.
    options: of Worker. using: database alias.
    """
    alias = using or conf.settings().DATABASE
    errors: list[BaseException] = []

    def note(error: BaseException, job: JobSummary | None) -> None:
        errors.append(error)

    total = 0
    while names := queues or _queues(alias):
        worker = Worker(names, using=alias, on_error=note, **options)
        try:
            ran = worker.run_until_idle()
        finally:
            worker.stop()
        total += ran
        if not ran:
            break
    if errors and raising:
        raise errors[0]
    return total


def _queues(using: str) -> list[str]:
    store = store_for(using)
    return sorted({*waiting(store, "ready"), *waiting(store, "scheduled")})


def enqueued_jobs(
    kind: "str | JobKind[Any] | None" = None, *, using: str | None = None, **fields: Any
) -> list[Job]:
    """Return the stored jobs in the order in which they were enqueued, whatever their state.

    kind: only of this kind. fields: only with these values of org (None: ownerless), queue, key,
    priority, max_attempts, meta, run_at, state. Raises TypeError for another name.
    """
    unknown = sorted(set(fields) - set(FIELDS))
    if unknown:
        raise TypeError(f"jobs are not found by {', '.join(unknown)}, only by {', '.join(FIELDS)}")
    if "org" in fields:
        fields["org"] = opt.check_org(fields["org"])
    rows = Job.objects.using(using or conf.settings().DATABASE).order_by("id")
    if kind is not None:
        rows = rows.filter(kind=_name(kind))
    return [job for job in rows if all(getattr(job, n) == value for n, value in fields.items())]


def assert_enqueued(
    kind: "str | JobKind[Any]",
    payload: Any = ANY,
    *,
    times: int = 1,
    using: str | None = None,
    **fields: Any,
) -> list[Job]:
    """Assert that exactly `times` jobs of `kind` were enqueued; return them.

    payload: only those with it, given as to `enqueue`. fields: as for `enqueued_jobs`. The
    AssertionError lists what was enqueued instead.
    """
    wanted = payload if payload is ANY else _stored(kind, payload)
    found = [
        job
        for job in enqueued_jobs(kind, using=using, **fields)
        if payload is ANY or job.payload == wanted
    ]
    if len(found) == times:
        return found
    asked = "".join(f", {name}={value!r}" for name, value in fields.items())
    lines = [
        f"  {job.kind} {job.payload!r} queue={job.queue!r} org={job.org or None!r} "
        f"key={job.key!r} state={job.state!r}"
        for job in enqueued_jobs(using=using)
    ]
    raise AssertionError(
        f"{len(found)} jobs, not {times}, of {_name(kind)!r} with payload {payload!r}{asked}; "
        + "\n".join(["enqueued were:", *lines] if lines else ["nothing was enqueued"])
    )


def assert_not_enqueued(
    kind: "str | JobKind[Any]", payload: Any = ANY, *, using: str | None = None, **fields: Any
) -> None:
    """Assert that no such job was enqueued; see `assert_enqueued`."""
    assert_enqueued(kind, payload, times=0, using=using, **fields)


@contextmanager
def set_clock(
    instant: datetime | None = None, *, using: str | None = None
) -> Iterator[clock.Override]:
    """Stop the clock by which the queue decides what is due, at `instant` (aware; None: now).

    Yields an object with `set(instant)` and `advance(timedelta)`. It holds for the statements that
    gnl_django sends from this process; the clock of Python and `now()` in your own queries go on.
    """
    start = now(using or conf.settings().DATABASE) if instant is None else instant
    with clock.override(start) as moved:
        yield moved


def _name(kind: "str | JobKind[Any]") -> str:
    return kind if isinstance(kind, str) else kind.kind


def _stored(kind: "str | JobKind[Any]", payload: Any) -> Any:
    """Return a payload as it reads from the row."""
    found = opt.kinds.find(kind) if isinstance(kind, str) else kind
    if found is None:
        return payload
    text = found.encode(payload, max_bytes=conf.settings().PAYLOAD_MAX_BYTES)
    return None if text is None else json.loads(text)
