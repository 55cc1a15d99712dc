"""`ctx`: what a handler knows of its job and may do through it (queue.md 3.6).

Made by `queue.execution` for one attempt. A handler that has lost its right can give no further
work through it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async

from gnl_django.core import payloads
from gnl_django.core.revocation import Revocation
from gnl_django.queue.api import enqueue

if TYPE_CHECKING:
    from gnl_django.queue.kinds import JobKind

PROGRESS_MAX_BYTES = 4_096


@dataclass(frozen=True)
class _Facts:
    #: Id of the job's row. (None under `run_handler_once`, which has no row.)
    job_id: int
    #: Name of the job's durable run.
    run_id: str
    kind: str
    #: None when ownerless.
    org: str | None
    queue: str
    #: Number of this attempt, from 1.
    attempt: int
    max_attempts: int
    #: Fences every write of this attempt.
    claim_token: str
    meta: Mapping[str, Any]
    #: Slot of the trigger that gave the job, aware UTC.
    scheduled_for: datetime | None
    #: Tells when the right to go on is lost.
    signal: Revocation
    using: str
    #: Takes the JSON of a progress; the worker writes it.
    report: Callable[[str], None]

    def _progress(self, done: float, total: float | None, message: str) -> None:
        self.signal.raise_if_revoked()
        value = {"done": done, "total": total, "message": message}
        self.report(payloads.encode(f"{self.kind} (progress)", value, max_bytes=PROGRESS_MAX_BYTES))

    def _enqueue(self, kind: "str | JobKind[Any]", payload: Any, options: dict[str, Any]) -> int:
        self.signal.raise_if_revoked()
        options.setdefault("org", self.org)
        options.setdefault("using", self.using)
        return enqueue(kind, payload, **options)


class JobContext(_Facts):
    """The context of a synchronous handler."""

    def enqueue(self, kind: "str | JobKind[Any]", payload: Any = None, **options: Any) -> int:
        """Give a job to the same organization unless `org` says otherwise; see `enqueue`.

        Raises ExecutionRevoked when this attempt has lost its right to go on.
        """
        return self._enqueue(kind, payload, options)

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Tell how far the work is; shown in the admin, written at most once a second.

        The last value is always written before the outcome. Raises ExecutionRevoked when this
        attempt has lost its right to go on, InvalidPayload for what is no JSON (queue.md 3.6).
        """
        self._progress(done, total, message)


class AsyncJobContext(_Facts):
    """The context of an `async def` handler: the same names, as coroutines."""

    async def enqueue(self, kind: "str | JobKind[Any]", payload: Any = None, **options: Any) -> int:
        """As JobContext.enqueue."""
        return await sync_to_async(self._enqueue)(kind, payload, options)

    async def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """As JobContext.progress."""
        self._progress(done, total, message)
