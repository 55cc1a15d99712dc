"""What the object page shows of one job: facts, values, failure, attempts.

Called by the job's page. Five statements; nothing of a row is trusted: texts are cut, values are
redacted, what is no JSON is not shown (security.md D7, D10, N4, X1).
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models.functions import Left
from django.utils.html import format_html
from django.utils.safestring import SafeString

from gnl_django import redaction
from gnl_django.core.db import now as database_now
from gnl_django.queue.models import Attempt, Job, State
from gnl_django.studio import formats

ATTEMPTS = 100
TOKEN_SHOWN = 8
#: Characters of a value as shown, and of its stored text: a larger one is not even parsed.
VALUE_MAX = 64 * 1024
STORED_MAX = 2_000_000
#: Characters of messages and tracebacks of all attempts together; the newest come first.
ATTEMPTS_TEXT = 256 * 1024
NEEDS_RIGHT = "Hidden. You need the permission “Can see payloads”."
VALUES = ("payload", "result", "progress", "meta")


@dataclass(frozen=True)
class Fact:
    """One line of the facts."""

    label: str
    value: str | SafeString
    code: bool = False


@dataclass(frozen=True)
class Value:
    """A user's value as text; `note` says what is missing from it."""

    title: str
    text: str
    note: str = ""


@dataclass(frozen=True)
class Tried:
    """One attempt that did not succeed."""

    attempt: Attempt
    revival: str
    outcome: str
    ended: SafeString
    lasted: str
    token: str
    error_class: str
    message: str
    traceback: str
    note: str


@dataclass(frozen=True)
class Detail:
    """Everything the page shows."""

    job: Job
    badge: SafeString
    when: SafeString
    note: str
    facts: list[Fact]
    values: list[Value]
    failure: str
    error: str
    newest: Tried | None
    attempts: list[Tried]
    more_attempts: bool
    hidden: str


def load(job: Job, *, open_to_user: bool) -> Detail:
    """Read the rest of a job on its own alias. `open_to_user`: who looks may see payloads."""
    using = job._state.db or "default"
    now = database_now(using)
    hidden = job.sensitive and not open_to_user
    *values, error = _texts(job, using)
    rows = list(Attempt.objects.using(using).filter(job_id=job.pk).order_by("-id")[: ATTEMPTS + 1])
    attempts = list(_tried(rows[:ATTEMPTS], now, hidden=hidden))
    failure = formats.short_class(job.error_class)
    failed = bool(job.error_class) and job.state != State.SUCCEEDED
    return Detail(
        job=job,
        badge=formats.badge(job.state),
        when=formats.when(job, now),
        note=_asked(job),
        facts=list(_facts(job, now)),
        values=[
            _value(name, text, job, hidden=hidden, open_to_user=open_to_user)
            for name, text in zip(VALUES, values, strict=True)
            if text not in (None, "{}")
        ],
        failure=failure if failed else "",
        error="" if hidden else printable(error or "").removeprefix(f"{failure}: "),
        newest=attempts[0] if attempts and failed else None,
        attempts=attempts,
        more_attempts=len(rows) > ATTEMPTS,
        hidden=NEEDS_RIGHT if hidden else "",
    )


def _texts(job: Job, using: str) -> tuple[Any, ...]:
    """Return the stored texts of the values, not parsed and cut, and the error."""
    columns = [Left(name, STORED_MAX + 1) for name in VALUES]
    rows = Job.objects.using(using).filter(pk=job.pk).values_list(*columns, "error")
    return rows.first() or (None,) * (len(VALUES) + 1)


def _value(title: str, text: str, job: Job, *, hidden: bool, open_to_user: bool) -> Value:
    if hidden:
        return Value(title, redaction.SENSITIVE, NEEDS_RIGHT)
    if len(text) > STORED_MAX:
        return Value(title, "", "Larger than 2 million characters; it is not shown.")
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return Value(title, "", "The stored text is no JSON; it is not shown.")
    if open_to_user:
        shown = redaction.redact_keys(job.kind, parsed)
    else:
        shown = redaction.redact(job.kind, parsed, sensitive=job.sensitive)
    full = printable(json.dumps(shown, indent=2, ensure_ascii=False, default=str))
    if len(full) <= VALUE_MAX:
        return Value(title, full)
    return Value(title, full[:VALUE_MAX], f"Cut: {VALUE_MAX // 1024} of {len(full) // 1024} KiB.")


def printable(text: str) -> str:
    """Return text that can be sent: lone surrogates and NUL replaced."""
    return text.replace("\x00", "�").encode(errors="replace").decode()


def _asked(job: Job) -> str:
    if job.state == State.CANCELED:
        return printable(job.cancel_reason)
    if job.cancel_requested_at is None:
        return ""
    reason = f": {job.cancel_reason}" if job.cancel_reason else ""
    return printable(f"The handler was asked to stop{reason}")


def _facts(job: Job, now: datetime) -> Iterator[Fact]:
    yield Fact("Kind", job.kind, code=True)
    yield Fact("Queue", job.queue, code=True)
    yield Fact("Organization", job.org or "none", code=bool(job.org))
    yield Fact("Attempt", f"{job.attempt} of {job.max_attempts}")
    yield Fact("Priority", str(job.priority))
    if job.revivals:
        yield Fact("Retried by hand", _times(job.revivals))
    if job.deferrals:
        yield Fact("Deferred", _times(job.deferrals))
    times = {
        "Enqueued": job.enqueued_at,
        "Slot": job.scheduled_for,
        "Run at": job.run_at,
        "Started": job.started_at,
        "Finished": job.finished_at,
        "Lease until": job.lease_expires_at,
        "Stop asked": job.cancel_requested_at,
    }
    for label, moment in times.items():
        if moment is not None:
            yield Fact(label, formats.exact(moment, now))
    texts = {
        "Worker": job.worker,
        "Claim": job.claim_token and f"{job.claim_token[:TOKEN_SHOWN]}…",
        "Key": job.key,
        "Run": job.run_id,
        "Error key": job.error_key,
    }
    for label, text in texts.items():
        if text:
            yield Fact(label, printable(text), code=True)
    if job.note:
        yield Fact("Note", printable(job.note))


def _retries(count: int) -> str:
    return "1 retry" if count == 1 else f"{count} retries"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _tried(rows: list[Attempt], now: datetime, *, hidden: bool) -> Iterator[Tried]:
    left = ATTEMPTS_TEXT
    for row in rows:
        message = "" if hidden else printable(row.message)
        traceback = "" if hidden else printable(row.traceback)
        note = ""
        left -= len(message) + len(traceback)
        if left < 0:
            message, traceback = formats.first_line(message), ""
            note = "Traceback left out: the page would be too large."
        yield Tried(
            attempt=row,
            revival=f"after {_retries(row.revival)} by hand" if row.revival else "",
            outcome=row.outcome.replace("_", " "),
            ended=format_html("{}", formats.exact(row.finished_at, now)),
            lasted=formats.span((row.finished_at - row.started_at).total_seconds()),
            token=row.claim_token[:TOKEN_SHOWN],
            error_class=row.error_class,
            message=message,
            traceback=traceback,
            note=note,
        )
