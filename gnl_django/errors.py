"""Every error this package raises, records or logs by name; all stand below `GnlError`.

Imports nothing of Django, so that any code may name them at any time.
"""

from collections.abc import Sequence
from dataclasses import dataclass


class GnlError(Exception):
    """Base of all errors of gnl_django."""


class UnknownKind(GnlError):
    """No handler is registered under this kind (queue.md R1)."""

    def __init__(self, kind: str) -> None:
        super().__init__(
            f"no handler registered for kind {kind!r}: "
            "declare it with @job in the background.py of an installed app"
        )
        self.kind = kind


@dataclass(frozen=True)
class PayloadIssue:
    """One fault of a payload: `path` as `/a/0/b` (`/` is the root), `message` in words."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class InvalidPayload(GnlError):
    """The payload does not fit its kind's type or is not storable JSON (queue.md R2).

    `issues` holds one `PayloadIssue` for each fault found.
    """

    def __init__(self, kind: str, issues: Sequence[PayloadIssue]) -> None:
        super().__init__(f"payload of {kind!r}: " + "; ".join(map(str, issues)))
        self.kind = kind
        self.issues = tuple(issues)


class QueueDepthExceeded(GnlError):
    """The lane already holds `max_depth` unfinished jobs (queue.md R7)."""

    def __init__(self, kind: str, depth: int, max_depth: int, org: str | None) -> None:
        lane = "the ownerless lane" if org is None else f"the lane of {org!r}"
        super().__init__(f"{kind!r}: {lane} holds {depth} unfinished jobs, max_depth={max_depth}")
        self.kind = kind
        self.depth = depth
        self.max_depth = max_depth
        self.org = org


class PermanentFailure(GnlError):
    """Raise it from a handler when trying again is senseless: the job is dead at once (R35)."""


class InvalidResult(PermanentFailure):
    """A task returned what is not JSON, or more of it than is stored (queue.md R58)."""


class ExecutionRevoked(GnlError):
    """The handler has lost the right to go on (queue.md 3.7).

    `why` is "canceled", "lease-lost" or "timeout".
    """

    def __init__(self, why: str) -> None:
        super().__init__(f"execution revoked: {why}")
        self.why = why


class StaleClaim(GnlError):
    """The claim token is no longer the row's: somebody else owns the job (queue.md R27)."""


class LeaseExpired(GnlError):
    """The holder of the lease vanished; recorded by reap, never raised (queue.md R32)."""


class Deferral(GnlError):
    """Not a failure: the job is tried again after `retry_in` seconds, at no cost (R43)."""

    def __init__(self, message: str, *, retry_in: float = 1.0) -> None:
        super().__init__(message)
        self.retry_in = retry_in


class StepInFlight(Deferral):
    """Another holder may still be inside this side-effect step."""


class RunBusy(Deferral):
    """Another process executes this durable run."""
