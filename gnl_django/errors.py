"""Every error this package raises, records or logs by name; all stand below `GnlError`.

Imports nothing of Django, so that any code may name them at any time.
"""

from collections.abc import Sequence
from dataclasses import dataclass


class GnlError(Exception):
    """Base of all errors of gnl_django."""


class UnknownKind(GnlError):
    """No handler is registered under this kind (queue.md R1)."""

    def __init__(self, kind: str, broken: Sequence[str] = ()) -> None:
        why = "declare it with @job in the background.py of an installed app"
        if broken:
            why += f"; or mend {', '.join(broken)}, which cannot be imported (see the log)"
        super().__init__(f"no handler registered for kind {kind!r}: {why}")
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
    """Another holder may still be inside this side-effect step (runs.md R17).

    `age` seconds have passed since it was claimed; after `retry_in` more it counts as abandoned.
    """

    def __init__(self, key: str, age: float, claim_ttl: float, retry_in: float) -> None:
        super().__init__(
            f"step {key!r} was begun {age:.1f} s ago by another holder (claim_ttl {claim_ttl:g} s)",
            retry_in=retry_in,
        )
        self.key = key
        self.age = age
        self.claim_ttl = claim_ttl


class RunBusy(Deferral):
    """Another process executes this durable run; its lock ends in `retry_in` seconds (R2)."""

    def __init__(self, run_id: str, *, retry_in: float) -> None:
        super().__init__(
            f"run {run_id!r} is being executed; its lock ends in {retry_in!s:.5} s",
            retry_in=retry_in,
        )
        self.run_id = run_id


class StepUnresolved(PermanentFailure):
    """A side effect was begun and nobody knows whether it happened (runs.md R17).

    It is not guessed: give the step a `recover`, or decide with `resolve_step`. `state` is
    "claimed" or "failed".
    """

    def __init__(self, key: str, state: str) -> None:
        super().__init__(
            f"step {key!r} was begun and not recorded (state {state}); it may have happened: "
            "decide with resolve_step, or give the step a recover function"
        )
        self.key = key
        self.state = state


class RunCanceled(ExecutionRevoked):
    """The durable run was canceled; `reason` is what `cancel_run` or `cancel_job` gave (R24)."""

    def __init__(self, run_id: str, reason: str = "") -> None:
        super().__init__("canceled")
        self.args = (f"run {run_id!r} was canceled" + (f": {reason}" if reason else ""),)
        self.run_id = run_id
        self.reason = reason


class RunInputMismatch(GnlError):
    """The run was begun with another input, and it is strict (runs.md R6)."""

    def __init__(self, run_id: str) -> None:
        super().__init__(
            f"run {run_id!r} was begun with another input; omit it to go on with the first one, "
            "or take another run id"
        )
        self.run_id = run_id


class NonDeterministicRun(GnlError):
    """The code calls its steps in another order than the journal has them (runs.md R12).

    `ordinal` counts the calls from 1, `recorded` is the key in the journal (None: the run is
    complete and has no such step), `called` the key that the code asks for now.
    """

    def __init__(self, run_id: str, ordinal: int, recorded: str | None, called: str) -> None:
        have = "no step more" if recorded is None else repr(recorded)
        super().__init__(
            f"run {run_id!r}: call {ordinal} is {called!r}, but the journal has {have} there; "
            "keep the order of steps, or declare the run with strict=False"
        )
        self.run_id = run_id
        self.ordinal = ordinal
        self.recorded = recorded
        self.called = called


class ToolError(GnlError):
    """Raise it from an agent's tool: the model is told, and the loop goes on (runs.md R30)."""


class BudgetExceeded(GnlError):
    """A limit on the amount of work was reached before the next piece (runs.md R29)."""

    def __init__(self, name: str, limit: int, used: int) -> None:
        super().__init__(f"{name}: {used} used of {limit}")
        self.name = name
        self.limit = limit
        self.used = used
