"""Fixtures of the conformance tests: kinds, in-process workers, threads with own connections.

Whatever a fixture hands out it also takes back, so that a test leaves no kind, hook or connection.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gnl_django.core import failpoints
from gnl_django.queue.kinds import JobKind, job
from gnl_django.queue.options import kinds

Declare = Callable[..., JobKind[Any]]


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
def failpoint(settings: Any) -> Iterator[Callable[[str, Callable[[], None]], None]]:
    """Call a function of this test at a fail point: `failpoint("enqueue.inserted", gate.wait)`."""
    settings.GNL = {**getattr(settings, "GNL", {}), "FAILPOINTS": True}
    names: set[str] = set()

    def hook(name: str, call: Callable[[], None]) -> None:
        failpoints.hook(name, call)
        names.add(name)

    yield hook
    for name in names:
        failpoints.hook(name, None)
