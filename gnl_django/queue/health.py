"""How the queue stands: numbers of each queue, and what an operator should know.

Called by `gnl_status`. Bounded reads only, so it may be asked every few seconds whatever the tables
hold (queue.md 3.9, studio.md R151).
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from gnl_django import conf
from gnl_django.core.db import now
from gnl_django.core.health import HealthWarning
from gnl_django.queue import unserved
from gnl_django.queue.models import Job, QueueState
from gnl_django.queue.store import store_for
from gnl_django.queue.store.counts import MOST, Waiting, by_queue, waiting

#: A pass reaps at once; a lease that ran out longer ago found no worker.
LEASE_GRACE = timedelta(seconds=15)
NOTHING = Waiting(0, None)


@dataclass(frozen=True)
class QueueNumbers:
    """One queue; a count above `counts.MOST` means "that many or more"."""

    queue: str
    scheduled: int
    ready: int
    running: int
    dead: int
    #: run_at of the ready job that waits longest (of those counted).
    oldest_ready: datetime | None


def numbers(using: str) -> list[QueueNumbers]:
    """Return the numbers of every queue that holds unfinished or dead jobs, by name."""
    store = store_for(using)
    ready, scheduled = waiting(store, "ready"), waiting(store, "scheduled")
    running, dead = by_queue(store, "running"), by_queue(store, "dead")
    return [
        QueueNumbers(
            queue,
            scheduled=scheduled.get(queue, NOTHING).count,
            ready=ready.get(queue, NOTHING).count,
            running=running.get(queue, 0),
            dead=dead.get(queue, 0),
            oldest_ready=ready.get(queue, NOTHING).oldest,
        )
        for queue in sorted({*ready, *scheduled, *running, *dead})
    ]


def warnings(using: str) -> list[HealthWarning]:
    """Return what is wrong with the queue of alias `using`, the worst first."""
    return judge(numbers(using), using)


def judge(queues: list[QueueNumbers], using: str) -> list[HealthWarning]:
    """As `warnings`, for numbers that were read already."""
    moment = now(using)
    states = {row.queue: row for row in QueueState.objects.using(using).filter(org="")}
    found = [_late(queue, states.get(queue.queue), moment) for queue in queues]
    found += [_overdue(using, moment), _expired(using, moment)]
    found += unserved.warnings(using, moment)
    found += [_paused(state) for state in states.values()]
    return sorted((w for w in found if w is not None), key=lambda warning: not warning.unhealthy)


def _late(queue: QueueNumbers, state: QueueState | None, moment: datetime) -> HealthWarning | None:
    limit = _alert_age(state)
    if queue.oldest_ready is None or (state is not None and state.paused_at is not None):
        return None
    age = moment - queue.oldest_ready
    if age <= limit:
        return None
    return HealthWarning(
        "late",
        f"Queue {queue.queue}: the oldest ready job waits {span(age)} (limit {span(limit)}).",
        unhealthy=True,
    )


def _overdue(using: str, moment: datetime) -> HealthWarning | None:
    rows = Job.objects.using(using).filter(state="scheduled").order_by("run_at", "id")
    due = rows.values_list("run_at", flat=True).first()
    limit = _alert_age(None)
    if due is None or moment - due <= limit:
        return None
    return HealthWarning(
        "overdue",
        f"A scheduled job is due for {span(moment - due)} and no worker has made it ready "
        f"(limit {span(limit)}).",
        unhealthy=True,
    )


def _expired(using: str, moment: datetime) -> HealthWarning | None:
    rows = Job.objects.using(using).filter(state="running").order_by("lease_expires_at", "id")
    end = rows.values_list("lease_expires_at", flat=True).first()
    if end is None or moment - end <= LEASE_GRACE:
        return None
    return HealthWarning(
        "lease",
        f"A lease ran out {span(moment - end)} ago and no worker has taken the job back.",
    )


def _paused(state: QueueState) -> HealthWarning | None:
    if state.paused_at is None:
        return None
    why = f": {state.pause_reason}" if state.pause_reason else ""
    by = state.paused_by or "somebody"
    at = state.paused_at.isoformat(sep=" ", timespec="minutes")
    return HealthWarning("paused", f"Queue {state.queue} is paused by {by} since {at}{why}.")


def _alert_age(state: QueueState | None) -> timedelta:
    own = None if state is None else state.alert_age
    return timedelta(seconds=conf.settings().STUDIO_ALERT_AGE if own is None else own)


def span(length: timedelta) -> str:
    """Return a length of time in words: "40 s", "12 min", "5 h", "3 d"."""
    seconds = max(0, int(length.total_seconds()))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def capped(count: int) -> str:
    """Return a count in words: "214", or "100,000+" where it stopped."""
    return f"{MOST:,}+" if count > MOST else f"{count:,}"
