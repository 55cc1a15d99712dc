"""Fixtures of the conformance tests: kinds, in-process workers, threads with own connections.

Whatever a fixture hands out it also takes back, so that a test leaves no kind, no hook, no thread
and no connection behind.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from gnl_django import Worker
from gnl_django.core import clock, failpoints, heartbeat, leases
from gnl_django.queue.kinds import JobKind, job
from gnl_django.queue.options import kinds
from gnl_django.signals import job_finished
from tests.conformance.helpers import Call

Declare = Callable[..., JobKind[Any]]
MakeWorker = Callable[..., Worker]
Aside = Callable[[Callable[[], Any]], Call]
FailPoint = Callable[[str, Callable[[], object]], None]

NOON = datetime(2031, 5, 7, 12, 0, 0, tzinfo=UTC)


@pytest.fixture
def declare() -> Iterator[Declare]:
    """Declare kinds for one test: `declare("a.b", handler, max_attempts=2) -> JobKind`.

    Without a handler the kind's jobs succeed and return None. Declaring a kind again replaces it.
    """
    names: set[str] = set()

    def declare_kind(
        name: str, handler: Callable[..., Any] | None = None, **options: Any
    ) -> JobKind[Any]:
        if name in names:
            kinds.forget(name)
        declared = job(name, **options)(handler or _no_op)
        names.add(name)
        return declared

    yield declare_kind
    for name in names:
        kinds.forget(name)


def _no_op(payload: Any) -> None:
    """Succeed."""


@pytest.fixture
def kind(declare: Declare) -> JobKind[Any]:
    """A kind of any JSON whose jobs succeed."""
    return declare("t.plain")


@pytest.fixture
def make_worker() -> Iterator[MakeWorker]:
    """Make workers, `make_worker(concurrency=1)`, and stop them at the end of the test."""
    made: list[Worker] = []

    def make(queues: tuple[str, ...] = ("default",), **options: Any) -> Worker:
        worker = Worker(queues, **{"poll": 0.02, **options})
        made.append(worker)
        return worker

    yield make
    for worker in made:
        worker.stop(timeout=30)


@pytest.fixture
def aside() -> Iterator[Aside]:
    """Run a call in a thread of its own: `aside(fn).result()`; its connections are closed."""
    calls: list[Call] = []

    def start(work: Callable[[], Any]) -> Call:
        call = Call(work)
        calls.append(call)
        return call

    yield start
    for call in calls:
        call.join(30)


@pytest.fixture
def failpoint(settings: Any) -> Iterator[FailPoint]:
    """Call something of this test whenever a fail point is hit: `failpoint("retry.begin", fn)`."""
    settings.GNL = {**getattr(settings, "GNL", {}), "FAILPOINTS": True}
    names: set[str] = set()

    def hook(name: str, call: Callable[[], object]) -> None:
        failpoints.hook(name, call)
        names.add(name)

    yield hook
    for name in names:
        failpoints.hook(name, None)


@pytest.fixture
def frozen() -> Iterator[clock.Override]:
    """Stop the database's clock at NOON, for all statements of this process."""
    with clock.override(NOON) as now:
        yield now


@pytest.fixture
def quick_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a worker of the usual ttl renew every 0.1 s.

    So a test sees many renewals in a moment, and no machine is so slow that it loses a lease.
    """
    monkeypatch.setattr(heartbeat, "RENEWALS_PER_TTL", 300)


@pytest.fixture
def short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow leases of a few hundredths of a second."""
    monkeypatch.setattr(leases, "MIN_TTL", 0.01)


@pytest.fixture
def finished() -> Iterator[list[dict[str, Any]]]:
    """Collect what `job_finished` sends."""
    seen: list[dict[str, Any]] = []

    def receive(sender: object, *, signal: object, **values: Any) -> None:
        seen.append(values)

    job_finished.connect(receive)
    yield seen
    job_finished.disconnect(receive)
