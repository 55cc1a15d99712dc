"""`ctx`: what a handler knows of its job and may do through it (queue.md 3.6).

Made by `queue.execution` for one attempt. A handler that has lost its right can give no further
work through it.
"""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async

from gnl_django.core import payloads
from gnl_django.core.revocation import Revocation
from gnl_django.queue.api import enqueue
from gnl_django.runs.api import run_in
from gnl_django.runs.context import AsyncRunContext, RunContext
from gnl_django.runs.entry import entry_of
from gnl_django.runs.owners import Owner

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
    #: The attempt, as its durable run sees it.
    owner: Owner

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

    @property
    def _journal(self) -> RunContext:
        return RunContext(entry_of(self.owner))

    def step(self, name: str, fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call `fn(*args, ..)` once for this job and record what it returns.

        A retry after a crash gets the recorded output and does not call it again. Options and
        errors: see `gnl_django.RunContext.step` (runs.md 3.3).
        """
        return self._journal.step(name, fn, *args, **options)

    def claim(self, key: str, value: Any = True) -> bool:
        """Return True for the first call with `key` in this job, ever (runs.md R23)."""
        return self._journal.claim(key, value)

    def frozen(self, key: str, compute: Callable[[], Any]) -> Any:
        """Return what `compute` gave the first time it was asked in this job (runs.md R23)."""
        return self._journal.frozen(key, compute)

    def run(self, fn: Callable[..., Any] | None = None, *args: Any, **options: Any) -> Any:
        """Call `fn(run, *args, ..)` in this job's durable run, or run an agent in it.

        As `run_durable(ctx.run_id, ..)` (runs.md 3.3).
        """
        return run_in(self.owner, fn, args, options)


class AsyncJobContext(_Facts):
    """The context of an `async def` handler: the same names, as coroutines."""

    async def enqueue(self, kind: "str | JobKind[Any]", payload: Any = None, **options: Any) -> int:
        """As JobContext.enqueue."""
        return await sync_to_async(self._enqueue)(kind, payload, options)

    async def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """As JobContext.progress."""
        self._progress(done, total, message)

    @property
    def _journal(self) -> AsyncRunContext:
        return AsyncRunContext(entry_of(self.owner))

    def step(
        self, name: str, fn: Callable[..., Any], *args: Any, **options: Any
    ) -> Coroutine[Any, Any, Any]:
        """As JobContext.step; `fn` may be a coroutine function."""
        return self._journal.step(name, fn, *args, **options)

    async def claim(self, key: str, value: Any = True) -> bool:
        """As JobContext.claim."""
        return await self._journal.claim(key, value)

    async def frozen(self, key: str, compute: Callable[[], Any]) -> Any:
        """As JobContext.frozen; `compute` may be a coroutine function."""
        return await self._journal.frozen(key, compute)

    async def run(self, fn: Callable[..., Any] | None = None, *args: Any, **options: Any) -> Any:
        """As JobContext.run, with a coroutine function."""
        return await run_in(self.owner, fn, args, options)
