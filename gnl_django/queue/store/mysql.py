"""The queue on MySQL and MariaDB: no partial index, no RETURNING, a ring by literal hops.

A recursive CTE would walk the lanes too, but the optimizer takes no range from `org > cte.org`
(95 ms a claim at 50,000 ready rows against 0.12 ms a literal hop).
"""

from collections.abc import Sequence
from typing import Any

from gnl_django.core import failpoints
from gnl_django.queue.store.base import CLAIM_COLUMNS, ClaimedRow, ClaimRequest, NewRow
from gnl_django.queue.store.rowwise import RowwiseStore, quota, taken_in_order
from gnl_django.queue.store.rowwise_settle import marks

_READY = (
    "SELECT org, {part} AS part FROM gnl_django_job FORCE INDEX (gnl_job_ready) "
    "WHERE state='ready' AND queue=%s AND org {op} %s AND kind IN {kinds} ORDER BY org LIMIT 1"
)

#: Added to the id that an upsert answers for a job that was there already.
FOUND = 1 << 62


class MySQLStore(RowwiseStore):
    """The store of a MySQL or MariaDB alias."""

    VENDOR = "mysql"
    LOCK = " FOR UPDATE SKIP LOCKED"
    BY_KEY = "FORCE INDEX (PRIMARY)"
    LISTED_BY = "FORCE INDEX (gnl_job_org)"
    DEAD_BY = "FORCE INDEX (gnl_job_dead)"
    AFTER = "({now} + INTERVAL %s MICROSECOND)"
    UNTIL_DUE = "TIMESTAMPDIFF(MICROSECOND, {now}, run_at) / 1000000"
    QUOTE = "`"

    @staticmethod
    def duration(seconds: float) -> int:
        """Return microseconds."""
        return round(seconds * 1_000_000)

    def insert(self, row: NewRow) -> int:
        """One INSERT; with a key a plain look first, then the upsert that answers the id."""
        if row.dedup is not None:
            for found in self.find_keys([row.dedup]).values():
                return found
        text, params = self.insert_text([row])
        if row.dedup is not None:
            # The answer's high bit tells a stored job, which came meanwhile, from the new one.
            text += f" ON DUPLICATE KEY UPDATE id = id + 0 * LAST_INSERT_ID(id + {FOUND})"
        with self.execute(text, params) as cursor:
            answer = int(cursor.lastrowid)
        if answer < FOUND:
            return answer
        self.found.add(answer - FOUND)
        return answer - FOUND

    def insert_batch(self, rows: Sequence[NewRow]) -> list[int]:
        """Runs of unkeyed rows take consecutive ids; runs of keyed ones are looked up after."""
        ids: list[int] = []
        run: list[NewRow] = []
        for row in rows:
            if run and (run[-1].dedup is None) != (row.dedup is None):
                ids += self._insert_run(run)
                run = []
            run.append(row)
        return ids + self._insert_run(run)

    def _insert_run(self, run: list[NewRow]) -> list[int]:
        text, params = self.insert_text(run)
        keys = [row.dedup for row in run if row.dedup]
        if not keys:
            with self.execute(text, params) as cursor:
                first = int(cursor.lastrowid)
            step = self._id_step() if len(run) > 1 else 1
            return [first + at * step for at in range(len(run))]
        self.change(f"{text} ON DUPLICATE KEY UPDATE id = id", params)
        # A locking read sees what another transaction has committed meanwhile, at any isolation.
        found = dict(
            self.rows(
                "SELECT dedup, id FROM gnl_django_job "
                f"WHERE dedup IN {marks(keys)} LOCK IN SHARE MODE",
                keys,
            )
        )
        return [found[key] for key in keys]

    def _id_step(self) -> int:
        # A cluster of several primaries hands out every second or third id.
        return int(self.rows("SELECT @@SESSION.auto_increment_increment")[0][0])

    def first_lane(self, queue: str, kinds: Sequence[str]) -> str | None:
        """One read of the ready index."""
        found = self.rows(
            "SELECT org FROM gnl_django_job FORCE INDEX (gnl_job_ready) WHERE state='ready' "
            f"AND queue=%s AND kind IN {marks(kinds)} ORDER BY id + 0 LIMIT 1",
            [queue, *kinds],
        )
        return found[0][0] if found else None

    def ring(self, request: ClaimRequest) -> list[str]:
        """At most one statement more than lanes wanted, whatever the number of lanes."""
        after, upto = (">=", "<") if request.at_cursor else (">", "<=")
        kinds = marks(request.kinds)
        both = " UNION ALL ".join(
            f"({_READY.format(part=part, op=op, kinds=kinds)})"
            for part, op in ((1, after), (2, upto))
        )
        half = [request.queue, request.cursor, *request.kinds]
        heads = {row[1]: row[0] for row in self.rows(both, half * 2)}
        lanes: list[str] = []
        for part in (1, 2):
            org = heads.get(part)
            while org is not None and len(lanes) < request.n:
                if org not in request.paused:
                    lanes.append(org)
                if len(lanes) < request.n:
                    org = self._next_lane(request, org, wrapped=part == 2)
        return lanes

    def _next_lane(self, request: ClaimRequest, org: str, *, wrapped: bool) -> str | None:
        text = _READY.format(part=1, op=">", kinds=marks(request.kinds))
        found = self.rows(text, [request.queue, org, *request.kinds])
        if not found:
            return None
        beyond = found[0][0] > request.cursor or (
            request.at_cursor and found[0][0] == request.cursor
        )
        return None if wrapped and beyond else found[0][0]

    def take(self, request: ClaimRequest, ring: list[str]) -> list[ClaimedRow]:
        """Lock the picks of all lanes with one statement, mark them with another."""
        parts, params = [], []
        for position, org in enumerate(ring, 1):
            parts.append(
                f"(SELECT {CLAIM_COLUMNS} FROM gnl_django_job FORCE INDEX (gnl_job_ready) "
                f"WHERE state='ready' AND queue=%s AND org=%s AND kind IN {marks(request.kinds)} "
                f"ORDER BY priority DESC, id LIMIT {quota(request.n, len(ring), position)}"
                f"{self.LOCK})"
            )
            params += [request.queue, org, *request.kinds]
        picked: list[Any] = self.rows(" UNION ALL ".join(parts), params)
        failpoints.hit("claim.selected")
        if not picked:
            return []
        ids = sorted(row[0] for row in picked)
        changed = self.change(
            f"UPDATE gnl_django_job {self.BY_KEY} SET state='running', attempt=attempt+1, "
            f"claim_token=%s, lease_expires_at={self.AFTER}, started_at={{now}}, worker=%s, "
            "max_attempts=COALESCE(%s, max_attempts), progress=NULL "
            f"WHERE id IN {marks(ids)} AND state='ready'",
            [request.token, self.duration(request.ttl), request.worker, request.max_attempts, *ids],
        )
        assert changed == len(ids), "rows we have locked were changed by somebody else"  # noqa: S101
        failpoints.hit("claim.updated")
        return taken_in_order(
            ((*row[:8], row[8] + 1, request.max_attempts or row[9], row[10]) for row in picked),
            request,
        )


def build(using: str, *, prepare: bool) -> MySQLStore:
    """Return the store of alias `using`; the driver knows no prepared statements."""
    return MySQLStore(using)
