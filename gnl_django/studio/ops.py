"""What an operator may do to jobs: by one path and recorded, whichever door it came by.

Called by the list's actions, the object page's buttons and the confirm page. Every act calls the
library's own function; it and its LogEntry are one transaction (security.md 2.3, studio.md R70,
R87, R88). No record ever holds a payload.
"""

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db import DatabaseError, connections, router, transaction

from gnl_django.core.db import own_transaction, retrying
from gnl_django.queue.models import Job, State
from gnl_django.queue.operator import cancel_job, retry_jobs

audit = logging.getLogger("gnl_django.audit")

CHUNK = 500
#: Above this many jobs an act leaves one record a chunk, not one a job.
ONE_BY_ONE = 1_000
IDS_SHOWN = 20


@dataclass(frozen=True)
class Actor:
    """Who acts."""

    pk: Any
    name: str


@dataclass(frozen=True)
class Outcome:
    """What became of one job: the effect in words, or why it was left as it is."""

    job: Job
    done: bool
    words: str


@dataclass
class Report:
    """What became of all jobs of an act; `unrecorded`: it stands, but a LogEntry is missing."""

    done: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    unrecorded: bool = False

    def add(self, outcomes: Sequence[Outcome]) -> None:
        """Count outcomes."""
        for outcome in outcomes:
            (self.done if outcome.done else self.skipped)[outcome.words] += 1


class Op(ABC):
    """One act: whom it is for, what it applies to, and how it is done."""

    slug: str
    verb: str
    #: Codename and name of the permission.
    permission: str
    permission_name: str
    #: States it applies to, and those of which all jobs may be acted on at once: an index lists
    #: them.
    states: frozenset[str]
    listed: frozenset[str]
    #: Jobs that one request takes at most.
    limit: int
    consequence: str

    @abstractmethod
    def apply(self, ids: Sequence[int], using: str) -> set[int]:
        """Act on jobs inside the caller's transaction; return the ids on which it had effect."""

    @abstractmethod
    def effect(self, state: str) -> str:
        """Return the effect in words, for a job that is in `state` after it."""


class Retry(Op):
    """Make dead and canceled jobs ready again."""

    slug, verb = "retry", "Retry"
    permission, permission_name = "retry_job", "Can retry jobs"
    states = frozenset({State.DEAD.value, State.CANCELED.value})
    listed = frozenset({State.DEAD.value})
    limit = 10_000
    consequence = "The handler runs again, with all attempts."

    def apply(self, ids: Sequence[int], using: str) -> set[int]:
        """Revive those that may be revived and that no other transaction holds."""
        skips = connections[using].features.has_select_for_update_skip_locked
        rows = Job.objects.using(using).filter(pk__in=ids, state__in=self.states).order_by("pk")
        # Locked before they are handed on, so it is known which ones this call revives.
        held = set(rows.select_for_update(skip_locked=skips).values_list("pk", flat=True))
        retry_jobs(held, using=using)
        return held

    def effect(self, state: str) -> str:
        """Return what a retry does."""
        return "queued again"


class Cancel(Op):
    """Cancel jobs that wait; ask the handlers of running ones to stop."""

    slug, verb = "cancel", "Cancel"
    permission, permission_name = "cancel_job", "Can cancel jobs"
    states = frozenset({State.SCHEDULED.value, State.READY.value, State.RUNNING.value})
    listed = states
    limit = 1_000
    consequence = (
        "A waiting job is canceled at once; the handler of a running one is asked to stop."
    )

    def apply(self, ids: Sequence[int], using: str) -> set[int]:
        """Cancel one after another, in the order of their ids."""
        return {pk for pk in sorted(ids) if cancel_job(pk, using=using)}

    def effect(self, state: str) -> str:
        """Return what a cancel did."""
        return "asked to stop" if state == State.RUNNING else "canceled"


OPS: dict[str, Op] = {op.slug: op for op in (Retry(), Cancel())}


def run(op: Op, ids: Sequence[int], actor: Actor, using: str, *, about: str = "") -> Report:
    """Act on the jobs of `ids` on alias `using`, chunk by chunk, and record it.

    about: which jobs these are, in words, for the record of many. A job in another state than
    `op.states`, held by another transaction or gone is skipped and told, never an error.
    """
    report = Report()
    record = _record_each if len(ids) <= ONE_BY_ONE else _record_chunk
    for at in range(0, len(ids), CHUNK):
        act = _Act(op, ids[at : at + CHUNK], using, partial(record, op, actor=actor, about=about))
        outcomes = retrying(connections[using], act.once)
        changed = [outcome.job.pk for outcome in outcomes if outcome.done]
        audit.info(
            "%s by %r: %d of %d jobs, ids %s",
            op.verb,
            actor.name[:150],
            len(changed),
            len(outcomes),
            _listed(changed),
        )
        report.add(outcomes)
        if not act.together:
            report.unrecorded |= not _wrote(partial(act.record, outcomes))
    return report


@dataclass(frozen=True)
class _Act:
    """One chunk of an act: it and its record in one transaction, where one database has both."""

    op: Op
    ids: Sequence[int]
    using: str
    record: Callable[[Sequence[Outcome]], None]

    @property
    def together(self) -> bool:
        return router.db_for_write(LogEntry) == self.using

    def once(self) -> list[Outcome]:
        with own_transaction(connections[self.using]):
            outcomes = _outcomes(self.op, self.ids, self.using)
            if self.together:
                self.record(outcomes)
        return outcomes


def refuse(op: Op, ids: Sequence[int], actor: Actor, reason: str) -> None:
    """Record that an act was refused, by one LogEntry whatever the number of jobs."""
    audit.warning("%s by %r refused (%s), ids %s", op.verb, actor.name[:150], reason, _listed(ids))
    message = f"Refused: {op.verb.lower()}, {reason}"
    if len(ids) == 1:
        _log([Job(pk=ids[0], kind="job")], message, actor)
    else:
        _log_many(f"{len(ids)} jobs", f"{message}; ids {_listed(ids)}", actor)


def _outcomes(op: Op, ids: Sequence[int], using: str) -> list[Outcome]:
    changed = op.apply(ids, using)
    rows = Job.objects.using(using).only("id", "kind", "state")
    present = rows.in_bulk(list(ids))
    found = []
    for pk in ids:
        job = present.get(pk)
        if job is None:
            found.append(Outcome(Job(pk=pk, kind="job"), False, "gone"))
        elif pk in changed:
            found.append(Outcome(job, True, op.effect(job.state)))
        elif job.state in op.states:
            found.append(Outcome(job, False, "held by another transaction"))
        else:
            found.append(Outcome(job, False, job.state))
    return found


def _record_each(op: Op, outcomes: Sequence[Outcome], *, actor: Actor, about: str) -> None:
    by_message: dict[str, list[Job]] = {}
    for outcome in outcomes:
        verb = op.verb if outcome.done else f"{op.verb} skipped"
        by_message.setdefault(f"{verb}: {outcome.words}", []).append(outcome.job)
    for message, jobs in by_message.items():
        _log(jobs, message, actor)


def _record_chunk(op: Op, outcomes: Sequence[Outcome], *, actor: Actor, about: str) -> None:
    changed = sum(outcome.done for outcome in outcomes)
    ids = [outcome.job.pk for outcome in outcomes]
    _log_many(
        f"{op.verb} of {len(ids)} jobs",
        f"{op.verb}: {changed} changed, {len(ids) - changed} skipped; {about},"
        f" ids {min(ids)} to {max(ids)}",
        actor,
    )


def _log(jobs: Sequence[Job], message: str, actor: Actor) -> None:
    entries: Any = LogEntry.objects
    entries.log_actions(actor.pk, jobs, CHANGE, message)


def _log_many(what: str, message: str, actor: Actor) -> None:
    LogEntry.objects.create(
        user_id=actor.pk,
        content_type=ContentType.objects.get_for_model(Job),
        object_repr=what,
        action_flag=CHANGE,
        change_message=message,
    )


def _wrote(write: Callable[[], None]) -> bool:
    """Write a record beside the transaction of its act; it must not undo what is done."""
    try:
        with transaction.atomic(using=router.db_for_write(LogEntry)):
            write()
    except DatabaseError:
        audit.exception("An act stands without its LogEntry")
        return False
    return True


def _listed(ids: Sequence[int]) -> str:
    more = f" and {len(ids) - IDS_SHOWN} more" if len(ids) > IDS_SHOWN else ""
    return ", ".join(map(str, ids[:IDS_SHOWN])) + more
