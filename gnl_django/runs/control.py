"""Runs from outside: look at one, stop it, decide a step that nobody can tell about.

Called by users and operators; what executes a run is `runs.api` (runs.md 3.4).
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gnl_django import conf
from gnl_django.core.db import own_transaction
from gnl_django.core.payloads import clean_text
from gnl_django.core.registry import run_owner
from gnl_django.runs import values
from gnl_django.runs.journal import acts, journal_for
from gnl_django.runs.models import Run, Step

PAGE_MAX = 200


@dataclass(frozen=True)
class RunInfo:
    """A durable run as `get_run` shows it."""

    run_id: str
    org: str | None
    state: str
    strict: bool
    input: Any
    result: Any
    note: str
    error_class: str
    error: str
    entries: int
    steps: int
    cancel_reason: str
    scheduled_for: datetime | None
    created_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True)
class StepRow:
    """A recorded step as `list_steps` shows it."""

    id: int
    key: str
    ordinal: int
    mode: str
    state: str
    output: Any
    attempt: int
    started_at: datetime
    finished_at: datetime | None
    error: str


def cancel_run(run_id: str, reason: str = "", *, using: str | None = None) -> bool:
    """Ask a durable run to stop; end it at once when nobody executes it.

    The run of a job is canceled with its job. reason: up to 500 characters, the first one is kept.
    Returns False when the run is completed, canceled or unknown, or its owner refuses
    (runs.md R24).
    """
    alias = using or conf.settings().DATABASE
    journal = journal_for(alias)
    words = clean_text(reason, 4 * values.REASON_MAX)[: values.REASON_MAX]
    owner = run_owner(run_id)
    if owner is None:
        return acts.request_cancel(journal, run_id, words, owned=False)
    with own_transaction(journal.connection):  # the owner's row, then the run's
        org = Run.objects.using(alias).filter(run_id=run_id).values_list("org", flat=True).first()
        if not owner.cancel(run_id, org or "", words, alias):
            return False
        acts.request_cancel(journal, run_id, words, owned=True)
    return True


def get_run(run_id: str, *, using: str | None = None) -> RunInfo | None:
    """Return what is known of a run, None when it was never entered (runs.md 3.4)."""
    alias = using or conf.settings().DATABASE
    run = Run.objects.using(alias).filter(run_id=run_id).first()
    if run is None:
        return None
    return RunInfo(
        run_id=run.run_id,
        org=run.org or None,
        state=run.state,
        strict=run.strict,
        input=run.input,
        result=run.result,
        note=run.note,
        error_class=run.error_class,
        error=run.error,
        entries=run.entries,
        steps=run.steps.count(),
        cancel_reason=run.cancel_reason,
        scheduled_for=run.scheduled_for,
        created_at=run.created_at,
        finished_at=run.finished_at,
    )


def list_steps(
    run_id: str, *, after: int = 0, limit: int = PAGE_MAX, using: str | None = None
) -> list[StepRow]:
    """Return up to `limit` (1..200) recorded steps of a run whose ordinal is above `after`.

    In the order in which the code called them. Raises ValueError for a wrong limit (runs.md 3.4).
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= PAGE_MAX:
        raise ValueError(f"limit: {limit!r} is not 1 to {PAGE_MAX}")
    alias = using or conf.settings().DATABASE
    found = Step.objects.using(alias).filter(run__run_id=run_id, ordinal__gt=after)
    names = StepRow.__dataclass_fields__
    rows = found.order_by("ordinal", "id").only(*names)[:limit]
    return [StepRow(**{name: getattr(step, name) for name in names}) for step in rows]


_NOT_GIVEN: Any = object()


def resolve_step(
    run_id: str,
    key: str,
    *,
    output: Any = _NOT_GIVEN,
    rerun: bool = False,
    using: str | None = None,
) -> bool:
    """Decide a side effect of which nobody knows whether it happened; then retry the job.

    output: it happened, and this is what it returned. rerun=True: it did not; the next attempt
    calls it. Exactly one of the two, else ValueError. Returns False when the step is not one to be
    decided: done, being executed, or unknown. Raises InvalidPayload (runs.md R22).
    """
    if (output is _NOT_GIVEN) is not rerun:
        raise ValueError("give either output=.. (it happened) or rerun=True (it did not)")
    text = None if rerun else values.encode(f"step:{key}", output)
    return acts.resolve(journal_for(using or conf.settings().DATABASE), run_id, key, text)
