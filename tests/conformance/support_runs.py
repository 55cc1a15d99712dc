"""Helpers of the tests about durable runs.

An `executor` is one execution of a run without a right that could be lost: two of them are what a
fence keeps apart. A `Crash` ends the code as a kill would, as far as the journal can tell.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from gnl_django.core.db import now
from gnl_django.core.leases import new_token
from gnl_django.core.revocation import Revocation
from gnl_django.models import Run, Step
from gnl_django.runs.context import AsyncRunContext, RunContext
from gnl_django.runs.entry import Entry
from gnl_django.runs.journal import journal_for
from tests.conformance.helpers import statements

RUN = "r1"

FailPoint = Callable[[str, Callable[[], object]], None]


class Crash(BaseException):
    """The process is gone, as far as the journal can tell."""


class Body:
    """A step's body that counts its calls; it returns `value`, or raises it."""

    def __init__(self, value: Any = None) -> None:
        self.value = value
        self.calls: list[tuple[Any, ...]] = []

    def __call__(self, *args: Any) -> Any:
        """Be called."""
        self.calls.append(args)
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value

    @property
    def count(self) -> int:
        """How often it was called."""
        return len(self.calls)


def entry(run_id: str = RUN, *, org: str = "", signal: Revocation | None = None) -> Entry:
    """Return an entry without rights, not entered yet."""
    return Entry(run_id, journal_for("default"), rights=(), signal=signal or Revocation(), org=org)


def executor(run_id: str = RUN, *, strict: bool = True, **options: Any) -> RunContext:
    """Enter a run without taking its lock, so that others may be in it too."""
    made = entry(run_id, **options)
    made.enter(strict=strict)
    return RunContext(made)


async def async_executor(run_id: str = RUN) -> AsyncRunContext:
    """As executor."""
    return AsyncRunContext((await sync_to_async(executor)(run_id)).entry)


@contextmanager
def crashes() -> Iterator[None]:
    """Expect a Crash."""
    with pytest.raises(Crash):
        yield


def crash_at(failpoint: FailPoint, name: str, *, nth: int = 1) -> None:
    """Crash when the fail point `name` is hit for the nth time, and never again."""
    hits: list[int] = []

    def act() -> None:
        hits.append(1)
        if len(hits) == nth:
            raise Crash(name)

    failpoint(name, act)


def run_row(run_id: str = RUN) -> Run:
    """Return the row."""
    return Run.objects.get(run_id=run_id)


def run_columns(run_id: str = RUN) -> dict[str, Any]:
    """Return every column of a run."""
    return dict(Run.objects.filter(run_id=run_id).values().get())


def step_row(key: str, run_id: str = RUN) -> Step:
    """Return the row."""
    return Step.objects.get(run__run_id=run_id, key=key)


def steps_of(run_id: str = RUN) -> list[tuple[str, str, Any]]:
    """Return key, state and output of the recorded steps in the code's order."""
    found = Step.objects.filter(run__run_id=run_id).order_by("ordinal", "id")
    return [(step.key, step.state, step.output) for step in found]


def keys_of(run_id: str = RUN) -> list[str]:
    """Return the keys of the recorded steps in the code's order."""
    return [key for key, _, _ in steps_of(run_id)]


def claimed_elsewhere(
    key: str,
    *,
    run_id: str = RUN,
    state: str = "claimed",
    age: timedelta = timedelta(0),
    ttl: int = 60,
    ordinal: int = 1,
) -> str:
    """Write the claim of a side effect that somebody else began; return its token."""
    run = Run.objects.filter(run_id=run_id).first() or make_run(run_id)
    token = new_token()
    began = now("default") - age
    Step.objects.create(
        run=run,
        key=key,
        ordinal=ordinal,
        mode="side_effect",
        state=state,
        claim_token=token,
        claimed_at=began,
        claim_ttl=ttl,
        attempt=1,
        started_at=began,
    )
    return token


def make_run(run_id: str = RUN, **changes: Any) -> Run:
    """Write a run that was entered once and left."""
    at = now("default")
    values: dict[str, Any] = {"entries": 1, "created_at": at, "updated_at": at, **changes}
    return Run.objects.create(run_id=run_id, **values)


@contextmanager
def journal_statements() -> Iterator[list[str]]:
    """Collect this thread's statements about runs and steps, without the control of transactions.

    What Django's own transactions send (BEGIN, SAVEPOINT, ..) is not counted.
    """
    found: list[str] = []
    with statements() as texts:
        yield found
    found += [text for text in texts if "gnl_django_" in text]
