"""A handler run once in the calling thread, without a job: for a try, a script, a test (R47).

Called by users, `JobKind.run_once` and `gnl_run_handler`. Writes nothing of its own; what the
handler writes is the handler's affair.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from asgiref.sync import async_to_sync

from gnl_django import conf
from gnl_django.core.leases import new_token
from gnl_django.core.revocation import Revocation
from gnl_django.errors import UnknownKind
from gnl_django.queue import options as opt
from gnl_django.queue.context import AsyncJobContext, JobContext
from gnl_django.runs.entry import Entry
from gnl_django.runs.owners import current

if TYPE_CHECKING:
    from gnl_django.queue.kinds import JobKind


@dataclass
class Trial:
    """A handler without a job: its run is kept in memory and forgotten (R47)."""

    run_id: str
    org: str
    using: str
    signal: Revocation
    attempt: int
    scheduled_for: datetime | None
    entry: Entry | None = None
    right: None = None

    @property
    def holder(self) -> str:
        """What it is called in the lock of a run that stands alone."""
        return self.run_id


def run_handler_once(
    kind: "str | JobKind[Any]",
    payload: Any = None,
    *,
    context: Mapping[str, Any] | None = None,
    validate: bool = True,
) -> Any:
    """Run a kind's handler with `payload`, once, and return what it returns (queue.md R47).

    payload: of the kind's type; checked and passed through JSON as an enqueue and a worker would
    do, with validate=False handed over as it is. context: fields of the handler's JobContext to be
    set; the others are those of an ownerless first and only attempt without a row (`job_id` None,
    `run_id` "once:" and random hex), under a signal that is never revoked.

    Raises UnknownKind, InvalidPayload, TypeError for an unknown field of the context, and whatever
    the handler raises. An `async def` handler is run to its end; from async code await the
    handler itself.
    """
    found = opt.kinds.find(kind) if isinstance(kind, str) else kind
    if found is None:
        raise UnknownKind(str(kind))
    if validate:
        text = found.encode(payload, max_bytes=conf.settings().PAYLOAD_MAX_BYTES)
        payload = found.decode(text)
    handler = async_to_sync(found.handler) if found.is_async else found.handler
    if not found.takes_context:
        return handler(payload)
    given = _context(found, context or {})
    here = current.set(given.owner)
    try:
        return handler(payload, given)
    finally:
        current.reset(here)


def _context(kind: "JobKind[Any]", given: Mapping[str, Any]) -> JobContext | AsyncJobContext:
    make = AsyncJobContext if kind.is_async else JobContext
    unknown = sorted(set(given) - {field.name for field in fields(make)})
    if unknown:
        raise TypeError(f"a JobContext has no {', '.join(unknown)}")
    facts: dict[str, Any] = {
        "job_id": None,
        "run_id": f"once:{uuid4().hex}",
        "kind": kind.kind,
        "org": None,
        "queue": kind.queue,
        "attempt": 1,
        "max_attempts": 1,
        "claim_token": new_token(),
        "meta": {},
        "scheduled_for": None,
        "signal": Revocation(),
        "using": conf.settings().DATABASE,
        "report": lambda text: None,
        **given,
    }
    facts["owner"] = Trial(
        run_id=facts["run_id"],
        org=facts["org"] or "",
        using=facts["using"],
        signal=facts["signal"],
        attempt=facts["attempt"],
        scheduled_for=facts["scheduled_for"],
    )
    return make(**facts)
