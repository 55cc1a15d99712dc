"""One attempt: from a claimed row to its outcome, in a slot's thread.

The payload is checked, the handler called, whatever it raises caught, and the thread's database
connections are left clean (queue.md R38, R40). The outcome is put into the outbox of whoever
claimed the job; nothing is written here.
"""

import asyncio
import json
import logging
import os
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime
from sys import maxsize
from threading import Event
from time import monotonic
from typing import Any

from asgiref.sync import async_to_sync, sync_to_async

from gnl_django.core import failpoints
from gnl_django.core.aio import cancel_from_anywhere
from gnl_django.core.leases import Lease
from gnl_django.core.revocation import Revocation
from gnl_django.core.telemetry import Span
from gnl_django.errors import ExecutionRevoked, InvalidPayload
from gnl_django.queue import outcomes
from gnl_django.queue.context import AsyncJobContext, JobContext
from gnl_django.queue.hygiene import tidy_async, untidy
from gnl_django.queue.kinds import JobKind
from gnl_django.queue.store.base import ClaimedRow, Outcome, run_of
from gnl_django.queue.telling import heard, started
from gnl_django.runs.entry import Entry
from gnl_django.runs.owners import current
from gnl_django.runs.rights import Right
from gnl_django.signals import job_started

logger = logging.getLogger(__name__)

REPORT_EVERY = 1.0
#: Where the code of the queue stands.
_OURS = os.path.join(os.path.dirname(__file__), "")


class Execution:
    """A claimed job on its way through a slot."""

    __slots__ = (
        "entry", "error", "kind", "lease", "outbox", "outcome", "progress", "replaced", "row",
        "running", "span", "stuck", "using",
    )  # fmt: skip

    def __init__(
        self, row: ClaimedRow, lease: Lease, kind: JobKind[Any], outbox: "Outbox", using: str
    ) -> None:
        self.row = row
        self.lease = lease
        self.kind = kind
        self.outbox = outbox
        self.using = using
        #: The handler's durable run, once it has used it.
        self.entry: Entry | None = None
        self.outcome: Outcome | None = None
        self.error: BaseException | None = None
        self.running = True
        #: The handler goes on long after it was told to stop; a slot was opened in its place.
        self.stuck = False
        self.replaced = False
        #: The last progress that the handler told, as JSON, until it is written.
        self.progress: str | None = None
        #: Where the project traces: the span of this attempt.
        self.span: Span | None = None

    def report(self, progress: str) -> None:
        """Take the handler's progress; the worker's thread writes it soon."""
        self.progress = progress
        self.outbox.reported(self)

    # the owner of a durable run (gnl_django.runs.owners.Owner)

    @property
    def run_id(self) -> str:
        """Name of the job's durable run."""
        return run_of(self.row.id, self.row.run_id)

    @property
    def org(self) -> str:
        """The job's organization, "" for none."""
        return self.row.org

    @property
    def signal(self) -> Revocation:
        """Tells when the claim is lost or to be given up."""
        return self.lease.signal

    @property
    def right(self) -> Right:
        """The claim: it gives the right to write into the run's journal (runs.md R4)."""
        return Right("gnl_django_job", self.row.id, "claim_token", self.lease.token, "running")

    @property
    def holder(self) -> str:
        """What the job is called in the lock of a run that stands alone."""
        return f"job:{self.row.id}"

    @property
    def attempt(self) -> int:
        """Number of the attempt."""
        return self.row.attempt

    @property
    def scheduled_for(self) -> datetime | None:
        """Slot of the trigger that gave the job."""
        return self.row.scheduled_for

    @property
    def lost(self) -> bool:
        """Whether the lease was lost: then nothing more is written for this attempt (R27)."""
        return self.lease.signal.why == "lease-lost"


class Outbox:
    """Executions that have ended and wait to be settled by the one who claimed them."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._items: deque[Execution] = deque()
        self._wake = wake
        self._expected = maxsize
        self._full = Event()
        self._reports: dict[int, Execution] = {}
        self.report_at = 0.0

    def put(self, execution: Execution) -> None:
        """Hand an ended execution back; from any thread."""
        self._items.append(execution)
        if len(self._items) >= self._expected:
            self._full.set()
        self._wake()

    def reported(self, execution: Execution) -> None:
        """Note that an execution has told its progress; from any thread."""
        self._reports[id(execution)] = execution
        if monotonic() >= self.report_at:
            self._wake()

    def reports(self, *, due_only: bool = True) -> list[Execution]:
        """Return whose progress is to be written now: at most once a second (queue.md 3.6)."""
        now = monotonic()
        if not self._reports or (due_only and now < self.report_at):
            return []
        self.report_at = now + REPORT_EVERY
        reports, self._reports = self._reports, {}
        return list(reports.values())

    def report_in(self) -> float | None:
        """Return the seconds until progress is to be written, None when there is none."""
        return max(0.0, self.report_at - monotonic()) if self._reports else None

    def gather(self, expected: int, seconds: float) -> int:
        """Wait until `expected` have ended, at most `seconds`; return how many have."""
        self._full.clear()
        self._expected = expected
        if len(self._items) < expected:
            self._full.wait(seconds)
        self._expected = maxsize  # nobody waits: `put` sets nothing
        return len(self._items)

    def take(self) -> list[Execution]:
        """Return what has ended, and forget it."""
        taken = []
        while self._items:
            taken.append(self._items.popleft())
        return taken


Around = Callable[[ClaimedRow], AbstractContextManager[None]]


def run(execution: Execution, around: Around) -> None:
    """Run one attempt inside `around(row)` and set its outcome. Raises nothing."""
    row = execution.row
    failpoints.hit("handler.before")
    if execution.lost:  # while it waited for a slot: somebody else may have the job
        return
    span = execution.span
    if span is not None:
        span.enter()
    value, error, judged = None, None, None
    here = current.set(execution)
    try:
        with around(row):
            started(row)
            value = _call(execution)
    except BaseException as raised:  # noqa: BLE001 - SystemExit too is only a failure (R35)
        error, judged = _unwrapped(raised)
    finally:
        current.reset(here)
    if span is not None:
        span.leave()
    _judge_safely(execution, value, error, judged)
    failpoints.hit("handler.returned")


def _unwrapped(raised: BaseException) -> tuple[BaseException, outcomes.Judged | None]:
    """Return what the handler raised, and what its kind says of it."""
    judged = raised if isinstance(raised, outcomes.Judged) else None
    error = raised if judged is None else judged.cause
    _strip(error)
    return error, judged


def _judge_safely(
    execution: Execution,
    value: object,
    error: BaseException | None,
    judged: outcomes.Judged | None,
) -> None:
    """Set an outcome whatever a result's or an exception's own methods raise: none gets lost."""
    row = execution.row
    try:
        _judge(execution, value, error, judged)
    except BaseException as trouble:
        logger.exception("The end of job %d (%s) cannot be read", row.id, row.kind)
        execution.outcome = outcomes.unreadable(row, execution.lease, trouble)
    if execution.entry is not None and execution.outcome is not None:
        execution.outcome = execution.outcome._replace(run_id=execution.run_id)


def _judge(
    execution: Execution,
    value: object,
    error: BaseException | None,
    judged: outcomes.Judged | None,
) -> None:
    """Set the outcome; none when the lease was lost (R27): the worker may give the job back."""
    row, lease, why = execution.row, execution.lease, execution.lease.signal.why
    if why == "lease-lost":
        return
    if why == "timeout" and not isinstance(error, ExecutionRevoked):
        error = ExecutionRevoked("timeout")
    if error is None:
        execution.outcome = outcomes.success(
            row, lease, value, max_bytes=execution.kind.result_max_bytes
        )
    else:
        execution.outcome = outcomes.failure(row, lease, execution.kind, error, judged)
        execution.error = error.cause if isinstance(error, outcomes.Undecodable) else error


async def run_async(execution: Execution) -> None:
    """Run one attempt of an async handler in this task; a revocation cancels it (R30)."""
    failpoints.hit("handler.before")
    if execution.lost:
        return
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine of ours always runs in a task
    span = execution.span
    if span is not None:
        span.enter()
    value, error, judged = None, None, None
    current.set(execution)  # this task's own context
    try:
        execution.lease.signal.on_revoke(lambda: cancel_from_anywhere(task))
        if heard(job_started):  # they may ask the database
            await sync_to_async(started)(execution.row)
        value = await execution.kind.handler(*_arguments(execution))
    except BaseException as raised:  # noqa: BLE001 - CancelledError, SystemExit too
        error, judged = _unwrapped(raised)
    if span is not None:
        span.leave()
    if untidy():
        await tidy_async(execution.row)
    _judge_safely(execution, value, error, judged)
    failpoints.hit("handler.returned")


def _call(execution: Execution) -> Any:
    handler = execution.kind.handler
    call = async_to_sync(handler) if execution.kind.is_async else handler
    return call(*_arguments(execution))


def _arguments(execution: Execution) -> tuple[Any, ...]:
    row, kind = execution.row, execution.kind
    try:
        payload = kind.decode(row.payload)
    except InvalidPayload as error:
        raise outcomes.Undecodable(error) from None
    if not kind.takes_context:
        return (payload,)
    make = AsyncJobContext if kind.is_async else JobContext
    context = make(
        job_id=row.id,
        run_id=execution.run_id,
        kind=row.kind,
        org=row.org or None,
        queue=row.queue,
        attempt=row.attempt,
        max_attempts=row.max_attempts,
        claim_token=execution.lease.token,
        meta=json.loads(row.meta),
        scheduled_for=row.scheduled_for,
        signal=execution.lease.signal,
        using=execution.using,
        report=execution.report,
        owner=execution,
    )
    return payload, context


def _strip(error: BaseException) -> None:
    """Take our own frames off the traceback: it begins in the handler."""
    while (frame := error.__traceback__) is not None and frame.tb_next is not None:
        if not frame.tb_frame.f_code.co_filename.startswith(_OURS):
            return
        error.__traceback__ = frame.tb_next
