"""How many jobs stand in each queue, counted up to a bound inside the states' indexes.

Called by `queue.health`. Queues are found by hops through the index, so a count costs the same
whatever has been finished before.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from gnl_django.queue.store.base import Store

#: A count stops here; 100,000 ready jobs take 20 ms.
MOST = 100_000
QUEUES = 200

_WAITING = {
    "mysql": dict.fromkeys(("ready", "scheduled"), "FORCE INDEX (gnl_job_ready)"),
    "postgresql": dict.fromkeys(("ready", "scheduled"), ""),
    "sqlite": {
        "ready": "INDEXED BY gnl_job_ready",
        "scheduled": "INDEXED BY gnl_job_sched_lane",
    },
}
_ORDER = {"running": "lease_expires_at", "dead": "finished_at"}


@dataclass(frozen=True)
class Waiting:
    """Jobs of one state in one queue: how many, at most MOST + 1, and the earliest run_at."""

    count: int
    oldest: datetime | None


def waiting(store: Store, state: str) -> dict[str, Waiting]:
    """Return what is `ready` or `scheduled` in each queue, for up to 200 queues."""
    vendor = store.connection.vendor
    table = f"gnl_django_job {_WAITING[vendor][state]}"
    # The run_at of scheduled jobs does not stand in their queue's index, and is not asked for.
    column = "run_at" if state == "ready" else "NULL"
    zone = " AT TIME ZONE 'UTC'" if vendor == "postgresql" and state == "ready" else ""
    found: dict[str, Waiting] = {}
    queue = ""
    for _ in range(QUEUES):
        hop = store.read(
            f"SELECT queue FROM {table} WHERE state = '{state}' AND queue > %(queue)s "
            "ORDER BY queue LIMIT 1",
            {"queue": queue},
        )
        if not hop:
            break
        queue = hop[0][0]
        (row,) = store.read(
            f"SELECT count(*), (min(at)){zone} FROM (SELECT {column} AS at FROM {table} "
            f"WHERE state = '{state}' AND queue = %(queue)s LIMIT {MOST + 1}) c",
            {"queue": queue},
        )
        found[queue] = Waiting(int(row[0]), _utc(row[1]))
    return found


def by_queue(store: Store, state: str) -> dict[str, int]:
    """Return how many jobs of each queue are among the first MOST `running` or `dead` ones."""
    rows = store.read(
        "SELECT queue, count(*) FROM (SELECT queue FROM gnl_django_job "
        f"WHERE state = '{state}' ORDER BY {_ORDER[state]} LIMIT {MOST + 1}) c GROUP BY queue",
        {},
    )
    return {row[0]: int(row[1]) for row in rows}


def _utc(value: datetime | str | None) -> datetime | None:
    if value is None:
        return None
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    return moment.replace(tzinfo=UTC)
