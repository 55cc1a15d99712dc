"""`ctx`: what a handler knows of its job and may do through it (queue.md 3.6).

Made by `queue.execution` for one attempt. A handler that has lost its right can give no further
work through it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async

from gnl_django.core.revocation import Revocation
from gnl_django.queue.api import enqueue

if TYPE_CHECKING:
    from gnl_django.queue.kinds import JobKind


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


class AsyncJobContext(_Facts):
    """The context of an `async def` handler: the same names, as coroutines."""

    async def enqueue(self, kind: "str | JobKind[Any]", payload: Any = None, **options: Any) -> int:
        """As JobContext.enqueue."""
        return await sync_to_async(self._enqueue)(kind, payload, options)
