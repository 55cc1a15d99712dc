"""gnl_django's tables full of rows, and single acts of its store timed among them. PostgreSQL.

Rows are copied by the database from one that was enqueued; acts go through the store as a worker's
control thread uses it: prepared, on a connection of its own.
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence

from django.db import connection

from benchmarks.app.background import noop
from benchmarks.sides.base import Side, clone_sql
from gnl_django.models import Job
from gnl_django.queue.rings import Rings
from gnl_django.queue.store import store_for
from gnl_django.queue.store.base import Outcome

TABLE = Job._meta.db_table
COLUMNS = [str(field.column) for field in Job._meta.concrete_fields if not field.primary_key]
LONGEST_CLAIM = 10  # jobs in a claim, as for a worker of ten slots

_ENDED = {"attempt": "1", "started_at": "now()", "finished_at": "now()"}
_READY = {"state": "'ready'", "run_at": "now()"}
#: What a row of a sort has other than a fresh one.
SORTS: Mapping[str, Mapping[str, str]] = {
    "finished": {**_ENDED, "state": "'succeeded'"},
    "scheduled": {"state": "'scheduled'", "run_at": "now() + interval '1 day'"},
    "dead": {
        **_ENDED,
        "state": "'dead'",
        "error_class": "'builtins.ValueError'",
        "error_key": "'0123456789abcdef'",
    },
    "one_lane": _READY,
    "many_lanes": {**_READY, "org": "'org-' || g / 10"},
    "old": {
        **_ENDED,
        "state": "'succeeded'",
        "enqueued_at": "now() - interval '7 days 2 minutes'",
        "finished_at": "now() - interval '7 days 1 minute'",
    },
    "young": {
        **_ENDED,
        "state": "'succeeded'",
        "enqueued_at": "now() - interval '6 days 23 hours 1 minute'",
        "finished_at": "now() - interval '6 days 23 hours'",
    },
}
# what enqueue_many writes of a keyed job of an organization, every column from an array
BARE = f"""
INSERT INTO {TABLE} (kind, queue, org, state, priority, payload, meta, sensitive, key, dedup,
 run_at, attempt, max_attempts, revivals, deferrals, cancel_reason, note, error_class, error,
 enqueued_at)
SELECT h.kind, h.queue, h.org, 'ready', h.priority, h.payload, h.meta, h.sensitive, h.key, h.dedup,
 n.at, 0, h.max_attempts, 0, 0, '', '', '', '', n.at
FROM (SELECT clock_timestamp() AS at) n,
 unnest(%s::text[], %s::text[], %s::text[], %s::smallint[], %s::text[], %s::text[], %s::bool[],
  %s::text[], %s::text[], %s::smallint[])
 h(kind, queue, org, priority, payload, meta, sensitive, key, dedup, max_attempts)
"""


class Rows(Side):
    """The part of our side that works on whole tables."""

    def seed(self, finished: int, scheduled: int) -> None:
        self.fill(finished=finished, scheduled=scheduled)

    def fill(self, **counts: int) -> None:
        """Add so many rows of each sort."""
        template = noop.enqueue({"i": -1}, delay=3600)
        where = f"id = {template}"
        with connection.cursor() as cursor:
            for sort, count in counts.items():
                cursor.execute(clone_sql(TABLE, COLUMNS, SORTS[sort], where, count))
            cursor.execute(f'DELETE FROM "{TABLE}" WHERE {where}')

    def bare(self, count: int, orgs: int) -> tuple[float, float]:
        """Return the seconds of one INSERT .. SELECT unnest into our own table and indexes.

        First those from the same Python values that `enqueue_many` is given, written as JSON and
        digests but not checked; second those of the statement alone, its arrays ready.
        """
        jobs = [(f"org-{number % orgs}", f"job-{number}", {"i": number}) for number in range(count)]
        start = time.perf_counter()
        rows = [
            (
                "bench.noop",
                "default",
                org,
                0,
                json.dumps(payload, separators=(",", ":")),
                "{}",
                False,
                key,
                hashlib.sha256(f"{org}\0{key}".encode()).hexdigest(),
                5,
            )
            for org, key, payload in jobs
        ]
        arrays = [_array(column) for column in zip(*rows, strict=True)]
        ready = time.perf_counter()
        with connection.cursor() as cursor:
            cursor.execute(BARE, arrays)
        end = time.perf_counter()
        return end - start, end - ready

    def acts(self, count: int) -> dict[str, list[float]]:
        """Return the milliseconds of `count` claims of ten, empty promotes and empty reaps."""
        store = store_for("default", prepare=True)
        rings = Rings(lambda: (noop.kind,), ttl=30.0, worker="bench", max_attempts=None)
        claims = []
        for _ in range(count):
            start = time.perf_counter()
            taken = rings.claim(store, "default", LONGEST_CLAIM)
            claims.append((time.perf_counter() - start) * 1000)
            rows = taken.claimed.rows
            if len(rows) != LONGEST_CLAIM:
                raise RuntimeError(f"a claim brought {len(rows)} jobs")
            store.settle([Outcome(row.id, taken.token, "succeeded") for row in rows])
        return {
            "claim": claims,
            "promote": _timed(store.promote, count),
            "reap": _timed(store.reap, count),
        }

    def kept(self) -> int:
        """Return how many rows there are."""
        return Job.objects.count()


def _array(values: Sequence[object]) -> str:
    """Return an array in PostgreSQL's text form; psycopg's own lists take longer."""
    quoted = (str(value).replace("\\", "\\\\").replace('"', '\\"') for value in values)
    return '{"' + '","'.join(quoted) + '"}'


def _timed(act: Callable[[], object], count: int) -> list[float]:
    """Return the milliseconds of each of `count` calls."""
    found = []
    for _ in range(count):
        start = time.perf_counter()
        act()
        found.append((time.perf_counter() - start) * 1000)
    return found
