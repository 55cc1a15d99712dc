"""Deleting jobs that were kept long enough, a batch in each transaction (queue.md R50).

Candidates are found by plain reads that lock nothing; a batch is then locked by primary key, judged
again and deleted, its Attempts first. A row that somebody holds is passed over: prune waits for
nobody. Called by `queue.retention`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gnl_django.core import failpoints
from gnl_django.core.fields import to_database
from gnl_django.queue.store.base import Store
from gnl_django.queue.store.rowwise_settle import marks

BATCH = 1_000
LOCK = {"postgresql": "FOR UPDATE SKIP LOCKED", "mysql": "FOR UPDATE SKIP LOCKED", "sqlite": ""}
#: A DELETE that would read a small table as a whole would wait for rows of others on MySQL.
_DELETE = {
    "mysql": "DELETE t FROM {0} t FORCE INDEX (PRIMARY) WHERE t.id IN {1}",
    "postgresql": "DELETE FROM {0} WHERE id IN {1}",
    "sqlite": "DELETE FROM {0} WHERE id IN {1}",
}


@dataclass(frozen=True, slots=True)
class Cutoffs:
    """For each final state the instant up to which its jobs may go; None keeps them for ever."""

    succeeded: datetime | None
    canceled: datetime | None
    dead: datetime | None

    def due(self, state: str) -> str:
        """Return the condition "of this state and old enough"; `params` has its value."""
        if getattr(self, state) is None:
            return "1 = 0"
        return f"(state = '{state}' AND finished_at <= %({state})s)"

    def params(self, vendor: str) -> dict[str, object]:
        """Return the values for `due`."""
        return {
            state: to_database(getattr(self, state), vendor)
            for state in ("succeeded", "canceled", "dead")
        }


@dataclass(frozen=True, slots=True)
class Look:
    """Candidates of one batch, where the next look begins, and whether this was the last."""

    ids: list[int]
    place: Any
    last: bool


def look_at_dead(store: Store, cutoffs: Cutoffs, place: tuple[datetime, int] | None) -> Look:
    """Return dead jobs that may go, the oldest first, behind `place` (finished_at, id)."""
    vendor = store.connection.vendor
    condition, params = cutoffs.due("dead"), cutoffs.params(vendor)
    if place is not None:
        condition += " AND finished_at >= %(at)s AND (finished_at > %(at)s OR id > %(id)s)"
        params |= {"at": to_database(place[0], vendor), "id": place[1]}
    zone = " AT TIME ZONE 'UTC'" if vendor == "postgresql" else ""
    rows = store.read(
        f"SELECT (finished_at){zone}, id FROM gnl_django_job {store.DEAD_BY} WHERE {condition} "
        f"ORDER BY finished_at, id LIMIT {BATCH}",
        params,
    )
    at = (_utc(rows[-1][0]), rows[-1][1]) if rows else None
    return Look([row[1] for row in rows], at, len(rows) < BATCH)


def look_at_finished(store: Store, cutoffs: Cutoffs, place: int) -> Look:
    """Return succeeded and canceled jobs that may go among the next rows by id.

    The walk ends at the first row enqueued after the later cut-off: behind it nothing has been
    finished for long enough. So no index is written for these jobs.
    """
    vendor = store.connection.vendor
    young = max(c for c in (cutoffs.succeeded, cutoffs.canceled) if c is not None)
    rows = store.read(
        f"SELECT id, CASE WHEN {cutoffs.due('succeeded')} OR {cutoffs.due('canceled')} "
        "THEN 1 ELSE 0 END, CASE WHEN enqueued_at > %(young)s THEN 1 ELSE 0 END "
        f"FROM gnl_django_job {store.BY_KEY} WHERE id > %(place)s ORDER BY id LIMIT {BATCH}",
        {**cutoffs.params(vendor), "young": to_database(young, vendor), "place": place},
    )
    ids: list[int] = []
    for job_id, due, is_young in rows:
        if is_young:
            return Look(ids, job_id, last=True)
        if due:
            ids.append(job_id)
    return Look(ids, rows[-1][0] if rows else place, len(rows) < BATCH)


def delete(store: Store, ids: Sequence[int], cutoffs: Cutoffs) -> dict[str, int]:
    """Delete those of `ids` that may go and that nobody holds; return how many of each state."""
    if not ids:
        return {}

    def work() -> dict[str, int]:
        chosen = _chosen(store, ids, cutoffs)
        failpoints.hit("prune.selected")
        if chosen:
            attempts = _attempts(store, list(chosen))
            for at in range(0, len(attempts), BATCH):
                _delete(store, "gnl_django_attempt", attempts[at : at + BATCH])
            _delete(store, "gnl_django_job", list(chosen))
        failpoints.hit("prune.deleted")
        states = list(chosen.values())
        return {state: states.count(state) for state in set(states)}

    return store.own(work)


def _chosen(store: Store, ids: Sequence[int], cutoffs: Cutoffs) -> dict[int, str]:
    vendor = store.connection.vendor
    tests = " OR ".join(cutoffs.due(state) for state in ("succeeded", "canceled", "dead"))
    names = {f"id{at}": job_id for at, job_id in enumerate(ids)}
    listed = ", ".join(f"%({name})s" for name in names)
    text = (
        f"SELECT id, state FROM gnl_django_job {store.BY_KEY} WHERE id IN ({listed}) "
        f"AND ({tests}) ORDER BY id {LOCK[vendor]}"
    )
    return dict(store.rows(text, {**names, **cutoffs.params(vendor)}))


def _attempts(store: Store, ids: Sequence[int]) -> list[int]:
    # Nobody adds to these: an Attempt is written for a running job only.
    text = f"SELECT id FROM gnl_django_attempt WHERE job_id IN {marks(ids)}"
    return sorted(row[0] for row in store.rows(text, ids))


def _delete(store: Store, table: str, ids: Sequence[int]) -> None:
    text = _DELETE[store.connection.vendor].format(table, marks(ids))
    store.change(text, ids)


def _utc(value: datetime | str) -> datetime:
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    return moment.replace(tzinfo=UTC)
