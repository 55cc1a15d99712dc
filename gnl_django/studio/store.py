"""The only raw SQL of the admin's pages: what one statement can tell about the whole table.

Called once a page. Every number is counted up to a bound, inside the state's own index, so a page
costs the same at a thousand rows and at fifty million (studio.md R20, R21).
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from django.db import connections

from gnl_django.core import clock

COUNT_MAX = 1_000

#: Counted states, each with the first column of its index: with that order (and the state as a
#: literal) no planner reads the table instead.
_COUNTED = {
    "ready": "queue",
    "scheduled": "run_at",
    "running": "lease_expires_at",
    "dead": "finished_at",
}
_COUNT = (
    "(SELECT count(*) FROM (SELECT 1 AS one FROM gnl_django_job"
    " WHERE state = '{0}' ORDER BY {1} LIMIT {2}) c_{0})"
)


@dataclass(frozen=True)
class Snapshot:
    """The database's time, and capped counts of the states that have an index."""

    now: datetime
    counts: dict[str, int]

    def shown(self, state: str) -> str:
        """Return a count in words, "" for a state that is not counted."""
        return capped(self.counts[state], COUNT_MAX) if state in self.counts else ""


def snapshot_sql() -> str:
    """Return the statement of `snapshot`, before the clock's words are put in."""
    counts = (_COUNT.format(state, order, COUNT_MAX + 1) for state, order in _COUNTED.items())
    return f"SELECT {{now}}, {', '.join(counts)}"


def snapshot(using: str) -> Snapshot:
    """Read the snapshot on alias `using`; one statement."""
    connection = connections[using]
    with connection.cursor() as cursor:
        cursor.execute(clock.render(snapshot_sql(), connection.vendor), [])
        moment, *counts = cursor.fetchone()
    now: datetime = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    # PostgreSQL's driver hands out an aware time, in the session's zone.
    now = now.astimezone(UTC) if now.tzinfo else now.replace(tzinfo=UTC)
    return Snapshot(now, dict(zip(_COUNTED, counts, strict=True)))


def capped(count: int, limit: int) -> str:
    """Return a count that stopped counting above `limit`: "214" or "1,000+"."""
    return f"{limit:,}+" if count > limit else f"{count:,}"
