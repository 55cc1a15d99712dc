"""The queue on SQLite: one writer, so look with plain reads and write in one short transaction.

An empty poll is one statement and takes no lock; a busy pass settles and claims in one commit.
"""

from collections.abc import Sequence
from typing import Any

from gnl_django.core import failpoints
from gnl_django.queue.store.base import (
    CLAIM_COLUMNS,
    Claimed,
    ClaimedRow,
    ClaimRequest,
    NewRow,
    Outcome,
    Points,
    Settled,
)
from gnl_django.queue.store.rowwise import RowwiseStore, quota, taken_in_order
from gnl_django.queue.store.rowwise_settle import marks

# The hops of the ring; SQLite takes no parenthesised part of a compound, hence SELECT * FROM (..).
_RING = """
WITH RECURSIVE
fwd(org, hop) AS (
  SELECT * FROM (SELECT org, 1 FROM gnl_django_job WHERE state='ready' AND queue=%(queue)s
    AND org <after> %(cursor)s AND kind IN <kinds> ORDER BY org LIMIT 1)
  UNION ALL
  SELECT (SELECT j.org FROM gnl_django_job j WHERE j.state='ready' AND j.queue=%(queue)s
    AND j.org > fwd.org AND j.kind IN <kinds> ORDER BY j.org LIMIT 1), hop + 1
  FROM fwd WHERE fwd.org IS NOT NULL AND hop < %(hops)s),
back(org, hop) AS (
  SELECT * FROM (SELECT org, 1 FROM gnl_django_job WHERE state='ready' AND queue=%(queue)s
    AND org <upto> %(cursor)s AND kind IN <kinds>
    AND (SELECT count(org) FROM fwd) < %(hops)s ORDER BY org LIMIT 1)
  UNION ALL
  SELECT (SELECT j.org FROM gnl_django_job j WHERE j.state='ready' AND j.queue=%(queue)s
    AND j.org > back.org AND j.org <upto> %(cursor)s AND j.kind IN <kinds>
    ORDER BY j.org LIMIT 1), hop + 1
  FROM back WHERE back.org IS NOT NULL AND hop < %(hops)s)
SELECT org FROM (
  SELECT org, hop, 1 AS part FROM fwd WHERE org IS NOT NULL
  UNION ALL SELECT org, hop, 2 FROM back WHERE org IS NOT NULL)
<unpaused> ORDER BY part, hop LIMIT %(n)s
"""


class SQLiteStore(RowwiseStore):
    """The store of an SQLite alias."""

    VENDOR = "sqlite"
    AFTER = "(strftime('%%Y-%%m-%%d %%H:%%M:%%f', {base}, %s) || '000')"
    UNTIL_DUE = "(julianday(run_at) - julianday({now})) * 86400.0"
    PAIRS = "VALUES "
    # Left to itself it walks all that the org ever had (500 jobs: 5,000 steps against 300).
    RUNNING_BY = "INDEXED BY gnl_job_lease"
    LISTED_BY = "INDEXED BY gnl_job_org"

    @staticmethod
    def duration(seconds: float) -> str:
        """Return a modifier of SQLite's date functions."""
        return f"+{seconds:.6f} seconds"

    def insert(self, row: NewRow) -> int:
        """One INSERT; a key that is stored already answers its id."""
        text, params = self.insert_text([row])
        if row.dedup is not None:
            text += " ON CONFLICT (dedup) WHERE dedup IS NOT NULL DO NOTHING"
        found = self.rows(f"{text} RETURNING id", params)
        if not found and row.dedup is not None:
            return self.find_keys([row.dedup])[row.dedup]
        return int(found[0][0])

    def insert_batch(self, rows: Sequence[NewRow]) -> list[int]:
        """One INSERT; the write lock that it holds keeps the looked-up keys free."""
        text, params = self.insert_text(rows)
        return sorted(row[0] for row in self.rows(f"{text} RETURNING id", params))

    def first_lane(self, queue: str, kinds: Sequence[str]) -> str | None:
        """One read of the ready index."""
        found = self.rows(
            "SELECT org FROM gnl_django_job WHERE state='ready' AND queue=%s "
            f"AND kind IN {marks(kinds)} ORDER BY id + 0 LIMIT 1",
            [queue, *kinds],
        )
        return found[0][0] if found else None

    def exchange(
        self, outcomes: Sequence[Outcome], request: ClaimRequest
    ) -> tuple[list[Settled], Claimed]:
        """One commit for both when there is something to settle."""
        if not outcomes:
            return [], self.claim(request)
        points = Points(outcomes)
        points.hit("begin")
        failpoints.hit("claim.begin")

        def work() -> tuple[list[Settled], Claimed]:
            settled = self.settle_rows(outcomes)
            points.hit("updated")
            ring = self.ring(request)
            taken = self.take(request, ring) if ring else []
            return settled, Claimed(taken, len(ring), ring[-1] if ring else "")

        answer = self.own(work)
        points.hit("committed")
        failpoints.hit("claim.committed")
        return answer

    def ring(self, request: ClaimRequest) -> list[str]:
        """One plain read."""
        after, upto = (">=", "<") if request.at_cursor else (">", "<=")
        kinds = {f"kind{at}": kind for at, kind in enumerate(request.kinds)}
        paused = {f"paused{at}": org for at, org in enumerate(request.paused)}
        unpaused = f"WHERE org NOT IN ({_names(paused)})" if paused else ""
        text = (
            _RING.replace("<after>", after)
            .replace("<upto>", upto)
            .replace("<kinds>", f"({_names(kinds)})")
            .replace("<unpaused>", unpaused)
        )
        params = {
            "queue": request.queue,
            "cursor": request.cursor,
            "n": request.n,
            "hops": request.n + len(request.paused),
            **kinds,
            **paused,
        }
        with self.execute(text, params) as cursor:
            return [row[0] for row in cursor.fetchall()]

    def take(self, request: ClaimRequest, ring: list[str]) -> list[ClaimedRow]:
        """One UPDATE .. RETURNING over the picks of all lanes."""
        parts = []
        params: list[Any] = [
            request.token,
            self.duration(request.ttl),
            request.worker,
            request.max_attempts,
        ]
        for position, org in enumerate(ring, 1):
            parts.append(
                "SELECT id FROM (SELECT id FROM gnl_django_job WHERE state='ready' AND queue=%s "
                f"AND org=%s AND kind IN {marks(request.kinds)} ORDER BY priority DESC, id "
                f"LIMIT {quota(request.n, len(ring), position)})"
            )
            params += [request.queue, org, *request.kinds]
        failpoints.hit("claim.selected")
        rows = self.rows(
            "UPDATE gnl_django_job SET state='running', attempt=attempt+1, claim_token=%s, "
            f"lease_expires_at={self.AFTER}, started_at={{now}}, worker=%s, "
            "max_attempts=coalesce(%s, max_attempts), progress=NULL "
            f"WHERE id IN ({' UNION ALL '.join(parts)}) AND state='ready' "
            f"RETURNING {CLAIM_COLUMNS}",
            params,
        )
        failpoints.hit("claim.updated")
        return taken_in_order(rows, request)


def _names(params: dict[str, Any]) -> str:
    return ", ".join(f"%({name})s" for name in params)


def build(using: str, *, prepare: bool) -> SQLiteStore:
    """Return the store of alias `using`; sqlite3 keeps its own cache of statements."""
    return SQLiteStore(using)
