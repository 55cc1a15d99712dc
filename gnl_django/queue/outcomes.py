"""How an attempt ended, as the row that will be written: the rules of success and failure.

Pure: no database, no threads. Called by `queue.execution` (queue.md R28-R30, R35-R38, R43, R44).
"""

import logging
from typing import Any

from gnl_django import conf
from gnl_django.core import backoff, payloads
from gnl_django.core.leases import Lease
from gnl_django.errors import Deferral, InvalidPayload, PermanentFailure
from gnl_django.queue import failures
from gnl_django.queue.error_keys import error_key
from gnl_django.queue.kinds import JobKind
from gnl_django.queue.store.base import ClaimedRow, Outcome
from gnl_django.queue.store.base import canceled as canceled

logger = logging.getLogger(__name__)

NOTE_MAX = 255
SHORTEST_DEFERRAL = 1.0
#: A result so many times too large is not even walked: its parts may be shared a thousandfold.
WALK_FACTOR = 4


class Undecodable(Exception):
    """The stored payload no longer fits its kind; `cause` says why (R38)."""

    def __init__(self, cause: InvalidPayload) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Judged(Exception):
    """A failure whose kind has said itself when to try again.

    `cause` is what the handler raised; `delay` seconds to wait, None = not at all: the job is dead.
    """

    def __init__(self, cause: BaseException, delay: float | None) -> None:
        super().__init__(str(delay))
        self.cause = cause
        self.delay = delay


def success(
    row: ClaimedRow, lease: Lease, value: object, *, max_bytes: int | None = None
) -> Outcome:
    """Return the outcome of a handler that returned `value` (R37).

    max_bytes: the largest result that is stored; None: GNL["RESULT_MAX_BYTES"].
    """
    if lease.signal.why == "canceled":
        return canceled(lease)
    most = conf.settings().RESULT_MAX_BYTES if max_bytes is None else max_bytes
    result, note = (None, "") if value is None else _result(value, most)
    return Outcome(row.id, lease.token, "succeeded", result=result, note=note)


def _result(value: object, max_bytes: int) -> tuple[str | None, str]:
    try:
        return _encoded(value, max_bytes)
    except Exception as problem:  # noqa: BLE001 - methods of a user's class may raise anything
        return None, f"result not stored: {type(problem).__name__}"[:NOTE_MAX]


def _encoded(value: object, max_bytes: int) -> tuple[str | None, str]:
    for fault in payloads.faults(value, max_bytes=WALK_FACTOR * max_bytes):
        text = fault.message if fault.path == "/" else str(fault)
        return None, f"result not stored: {text}"[:NOTE_MAX]
    text = payloads.dump(value)
    size = len(text.encode())
    if size > max_bytes:
        return None, f"result not stored: {size} bytes"
    return text, ""


def failure(
    row: ClaimedRow,
    lease: Lease,
    kind: JobKind[Any],
    error: BaseException,
    judged: Judged | None = None,
) -> Outcome:
    """Return the outcome of an attempt that raised `error` (R35, R38, R43)."""
    why = lease.signal.why
    if why == "canceled":
        return canceled(lease)
    if isinstance(error, Deferral) and why is None:
        delay = _deferral(error)
        return Outcome(row.id, lease.token, "scheduled", refund=True, deferred=True, delay=delay)
    invalid = isinstance(error, Undecodable)
    cause = error.cause if isinstance(error, Undecodable) else error
    dead = invalid or isinstance(error, PermanentFailure) or row.attempt >= row.max_attempts
    dead = dead or (judged is not None and judged.delay is None)
    delay = 0.0 if dead else _delay(row, kind, cause, judged)
    described = failures.describe(row.kind, cause)
    return Outcome(
        row.id,
        lease.token,
        "dead" if dead else "scheduled" if delay > 0 else "ready",
        delay=delay,
        recorded="invalid" if invalid else "timeout" if why == "timeout" else "failed",
        error_class=described.error_class,
        error=described.error,
        error_key=described.error_key,
        traceback=described.traceback,
    )


def _deferral(error: Deferral) -> float:
    try:
        return max(SHORTEST_DEFERRAL, backoff.seconds(error.retry_in))
    except (TypeError, ValueError):
        return SHORTEST_DEFERRAL


def _delay(
    row: ClaimedRow, kind: JobKind[Any], error: BaseException, judged: Judged | None
) -> float:
    if judged is not None and judged.delay is not None:
        return judged.delay
    try:
        return backoff.retry_delay(kind.retry_delay, row.attempt, error)
    except Exception as problem:  # noqa: BLE001 - the user's callable may raise anything
        logger.warning(
            "retry_delay of %s gives no delay (%s); the default is taken",
            row.kind,
            type(problem).__name__,
        )
        return backoff.default_retry(row.attempt)


def unreadable(row: ClaimedRow, lease: Lease, trouble: BaseException) -> Outcome:
    """Return the failure of an attempt whose end could not be described; `trouble` says by what."""
    dead = row.attempt >= row.max_attempts
    name = type(trouble).__name__ if type(trouble).__module__ == "builtins" else "an exception"
    return Outcome(
        row.id,
        lease.token,
        "dead" if dead else "scheduled",
        delay=0.0 if dead else backoff.default_retry(row.attempt),
        recorded="failed",
        error_class="gnl_django.errors.GnlError",
        error=f"The handler's result or exception cannot be read: {name} was raised by it",
        error_key=error_key(row.kind, "gnl_django.errors.GnlError"),
    )


def released(lease: Lease) -> Outcome:
    """Return the outcome of an attempt given back at shutdown (R44)."""
    return Outcome(lease.id, lease.token, "ready", refund=True, recorded="released")
