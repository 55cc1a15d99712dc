"""Deleting ended runs with their steps, and old marks, a batch in each transaction (runs.md 2.3).

A run goes whole or not at all: with half of its steps gone it would repeat their effects. Rows that
somebody holds are passed over. Called by `runs.retention`.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from gnl_django.core.fields import to_database
from gnl_django.runs.journal.shared import SqlJournal

BATCH = 100
MARKS = 1_000
STATES = ("completed", "failed", "canceled")

#: What goes with a run, by which index: its steps first.
_TABLES = (("gnl_django_step", "gnl_step_key", "run_id"), ("gnl_django_run", "PRIMARY", "id"))

#: (finished_at, id) of the last run that was looked at.
Place = tuple[datetime, int]


def look(
    journal: SqlJournal, state: str, cutoff: datetime, place: Place | None
) -> list[tuple[int, str, str, datetime]]:
    """Return the next runs that ended in `state` by `cutoff`: id, run id, org, finished_at."""
    vendor = journal.connection.vendor
    beyond, params = "", {"state": state, "cutoff": to_database(cutoff, vendor)}
    if place is not None:
        beyond = "AND finished_at >= %(at)s AND (finished_at > %(at)s OR id > %(id)s) "
        params |= {"at": to_database(place[0], vendor), "id": place[1]}  # type: ignore[dict-item]
    column = "finished_at AT TIME ZONE 'UTC'" if vendor == "postgresql" else "finished_at"
    found = journal.rows(
        f"SELECT id, run_id, org, {column} FROM gnl_django_run WHERE state = %(state)s "
        f"AND finished_at <= %(cutoff)s {beyond}ORDER BY finished_at, id LIMIT {BATCH}",
        params,
    )
    return [(pk, run_id, org, _utc(at)) for pk, run_id, org, at in found]


def delete(journal: SqlJournal, pks: Sequence[int], cutoff: datetime) -> int:
    """Delete those of `pks` that are still ended and old, with their steps; return how many."""

    def work() -> int:
        chosen = [
            row[0]
            for row in journal.rows(
                f"SELECT id FROM gnl_django_run WHERE id IN {_marks(pks)} "
                f"AND state <> 'running' AND finished_at <= %s ORDER BY id{journal.words.skip}",
                [*pks, to_database(cutoff, journal.connection.vendor)],
            )
        ]
        if chosen:
            for table, index, column in _TABLES:
                text = journal.words.delete.format(table, index)
                journal.change(f"{text} WHERE {column} IN {_marks(chosen)}", chosen)
        return len(chosen)

    return journal.own(work) if pks else 0


def delete_marks(journal: SqlJournal, cutoff: datetime) -> int:
    """Delete a batch of marks made by `cutoff`; return how many."""
    text = (
        f"SELECT {journal.KEY} FROM gnl_django_mark WHERE created_at <= %s "
        f"ORDER BY created_at LIMIT {MARKS}"
    )
    found = journal.rows(text, [to_database(cutoff, journal.connection.vendor)])
    keys = sorted(row[0] for row in found)
    if keys:
        text = journal.words.delete.format("gnl_django_mark", "PRIMARY")
        text = f"{text} WHERE {journal.KEY} IN {_marks(keys)}"
        journal.own(lambda: journal.change(text, keys))
    return len(keys)


def _marks(values: Sequence[object]) -> str:
    return "(" + ", ".join(["%s"] * len(values)) + ")"


def _utc(value: Any) -> datetime:
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    return moment.replace(tzinfo=UTC)
