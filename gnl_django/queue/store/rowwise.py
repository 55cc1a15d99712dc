"""What the MySQL and the SQLite store share: look first, then lock or take the write lock.

An idle pass is plain reads, so that an idle worker stops nobody; see `rowwise_settle` for the other
half. Subclassed by `mysql` and `sqlite`.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from gnl_django.core import failpoints
from gnl_django.core.fields import to_database
from gnl_django.queue.error_keys import error_key
from gnl_django.queue.store.base import (
    INSERT_COLUMNS,
    LEASE_EXPIRED,
    LEASE_EXPIRED_TEXT,
    PROMOTE_BATCH,
    REAP_BATCH,
    Canceled,
    Claimed,
    ClaimedRow,
    ClaimRequest,
    NewRow,
    Reaped,
    claimed_row,
    in_start_order,
    run_of,
)
from gnl_django.queue.store.rowwise_settle import ATTEMPT, RowwiseSettling, marks
from gnl_django.runs.journal import journal_for
from gnl_django.runs.journal.owned import follow, revive

INSERT_BATCH = 1_000
BATCH_CHARACTERS = 4 * 1024 * 1024

CANCEL = (
    "UPDATE gnl_django_job SET "
    "cancel_reason = CASE WHEN cancel_requested_at IS NULL THEN %s ELSE cancel_reason END, "
    "cancel_requested_at = coalesce(cancel_requested_at, {now}), "
    "finished_at = CASE WHEN state = 'running' THEN finished_at ELSE {now} END, "
    "state = CASE WHEN state = 'running' THEN 'running' ELSE 'canceled' END "
    "WHERE id = %s AND state IN ('scheduled', 'ready', 'running')"
)
RETRY = (
    "UPDATE gnl_django_job <by key> SET state='ready', attempt=0, revivals=revivals+1, "
    "run_at={now}, "
    "finished_at=NULL, cancel_requested_at=NULL, cancel_reason='', result=NULL, note='', "
    "error_class='', error='', error_key=NULL, progress=NULL "
    "WHERE state IN ('dead', 'canceled') AND id "
)


def quota(n: int, lanes: int, position: int) -> int:
    """Return how many jobs the lane at `position` (from 1) may give to a pass of `n` (R15)."""
    return n // lanes + (1 if position <= n % lanes else 0)


def aware(value: Any) -> datetime | None:
    """Return a driver's UTC value (naive datetime or text) as an aware datetime."""
    if value is None:
        return None
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    moment: datetime = value.replace(tzinfo=UTC)
    return moment


def taken_in_order(rows: Iterable[Sequence[Any]], request: ClaimRequest) -> list[ClaimedRow]:
    """Return claimed rows (columns of CLAIM_COLUMNS) in the order in which handlers start (R15)."""
    return in_start_order([claimed_row(row, aware(row[7])) for row in rows], request)


def _batches(rows: Sequence[NewRow]) -> Iterator[list[NewRow]]:
    """Cut rows into batches of at most 1,000 rows and about 4 MiB: a server bounds its packets."""
    batch: list[NewRow] = []
    size = 0
    for row in rows:
        size += len(row.payload or "") + len(row.meta)
        if batch and (len(batch) == INSERT_BATCH or size > BATCH_CHARACTERS):
            yield batch
            batch, size = [], len(row.payload or "") + len(row.meta)
        batch.append(row)
    if batch:
        yield batch


class RowwiseStore(RowwiseSettling):
    """Shared part; a vendor adds how it inserts, claims and counts time."""

    # enqueue

    def insert_text(self, rows: Sequence[NewRow]) -> tuple[str, list[object]]:
        """Return a multi-row INSERT and its parameters."""
        params: list[object] = []
        values = []
        for row in rows:
            if row.run_at is None and not row.delay:
                state, run_at, times = "'ready'", "{now}", []
            elif row.run_at is None:
                state, run_at = "'scheduled'", self.AFTER
                times = [self.duration(row.delay)]
            else:
                state = "CASE WHEN %s <= {now} THEN 'ready' ELSE 'scheduled' END"
                run_at, times = "%s", [to_database(row.run_at, self.VENDOR)] * 2
            values.append(
                f"(%s, %s, %s, {state}, %s, %s, %s, %s, %s, %s, {run_at}, "
                "0, %s, 0, 0, '', '', '', '', {now})"
            )
            params += [row.kind, row.queue, row.org, *times[:-1], row.priority, row.payload]
            params += [row.meta, row.sensitive, row.key, row.dedup, *times[-1:], row.max_attempts]
        names = ", ".join(f"{self.QUOTE}{name}{self.QUOTE}" for name in INSERT_COLUMNS)
        return f"INSERT INTO gnl_django_job ({names}) VALUES {', '.join(values)}", params

    def find_keys(self, dedups: Sequence[str]) -> dict[str, int]:
        """One look-up through the unique index for each 1,000 keys."""
        found: dict[str, int] = {}
        for at in range(0, len(dedups), INSERT_BATCH):
            part = dedups[at : at + INSERT_BATCH]
            text = f"SELECT dedup, id FROM gnl_django_job WHERE dedup IN {marks(part)}"
            found.update(self.rows(text, part))
        self.found.update(found.values())
        return found

    def insert_many(self, rows: Sequence[NewRow]) -> list[int]:
        """Look up stored keys, then multi-row INSERTs of at most 1,000 rows in call order."""
        known = self.find_keys([row.dedup for row in rows if row.dedup])
        new = [row for row in rows if row.dedup not in known]
        fresh: list[int] = []
        for batch in _batches(new):
            failpoints.hit("enqueue_many.chunk")
            fresh += self.insert_batch(batch)
        known.update({row.dedup: made for row, made in zip(new, fresh, strict=True) if row.dedup})
        unkeyed = iter([made for row, made in zip(new, fresh, strict=True) if not row.dedup])
        return [known[row.dedup] if row.dedup else next(unkeyed) for row in rows]

    @abstractmethod
    def insert_batch(self, rows: Sequence[NewRow]) -> list[int]:
        """Insert rows whose keys were free a moment ago; return their ids in order."""

    # the worker's pass

    @abstractmethod
    def ring(self, request: ClaimRequest) -> list[str]:
        """Return the first n lanes of the ring without the paused ones (R14); locks nothing."""

    @abstractmethod
    def take(self, request: ClaimRequest, ring: list[str]) -> list[ClaimedRow]:
        """Claim from the lanes of `ring` inside a transaction of ours."""

    def claim(self, request: ClaimRequest) -> Claimed:
        """Look for lanes with plain reads; only when there are some, lock and take."""
        failpoints.hit("claim.begin")
        ring = self.ring(request)
        if not ring:
            return Claimed([], 0, "")
        taken = self.own(lambda: self.take(request, ring))
        failpoints.hit("claim.committed")
        return Claimed(taken, len(ring), ring[-1])

    def promote(self) -> float | None:
        """One plain read when nothing is due."""
        look = f"SELECT {self.UNTIL_DUE} FROM gnl_django_job WHERE state='scheduled'"
        first = self.rows(f"{look} ORDER BY run_at, id LIMIT 1")
        if not first or first[0][0] > 0:
            return float(first[0][0]) if first else None
        while self.own(self._promote_batch) == PROMOTE_BATCH:
            failpoints.hit("promote.committed")
        failpoints.hit("promote.committed")
        ahead = self.rows(f"{look} AND run_at > {{now}} ORDER BY run_at, id LIMIT 1")
        return float(ahead[0][0]) if ahead else None

    def _promote_batch(self) -> int:
        found = self.rows(
            "SELECT id FROM gnl_django_job WHERE state='scheduled' AND run_at <= {now} "
            f"ORDER BY run_at, id LIMIT {PROMOTE_BATCH}{self.LOCK}"
        )
        ids = sorted(row[0] for row in found)
        if ids:
            self.change(
                f"UPDATE gnl_django_job {self.BY_KEY} SET state='ready' "
                f"WHERE id IN {marks(ids)} AND state='scheduled'",
                ids,
            )
        failpoints.hit("promote.updated")
        return len(ids)

    def reap(self) -> list[Reaped]:
        """One plain read when no lease has run out."""
        look = "SELECT 1 FROM gnl_django_job WHERE state='running' AND lease_expires_at <= {now}"
        reaped: list[Reaped] = []
        while self.rows(f"{look} LIMIT 1"):
            batch = self.own(self._reap_batch)
            failpoints.hit("reap.committed")
            reaped += batch
            if len(batch) < REAP_BATCH:
                break
        return reaped

    def _reap_batch(self) -> list[Reaped]:
        rows = self.rows(
            "SELECT id, kind, org, CASE WHEN cancel_requested_at IS NOT NULL THEN 'canceled' "
            "WHEN attempt >= max_attempts THEN 'dead' ELSE 'ready' END, run_id FROM gnl_django_job "
            "WHERE state='running' AND lease_expires_at <= {now} "
            f"ORDER BY lease_expires_at, id LIMIT {REAP_BATCH}{self.LOCK}"
        )
        failpoints.hit("reap.selected")
        if not rows:
            return []
        ids = sorted(row[0] for row in rows)
        error = ("lease_lost", LEASE_EXPIRED, LEASE_EXPIRED_TEXT, "")
        self.change(f"{ATTEMPT}IN {marks(ids)}", [*error, *ids])
        groups: dict[tuple[str, str], list[int]] = {}
        for row in rows:
            groups.setdefault((row[1], row[3]), []).append(row[0])
        for (kind, state), group in groups.items():
            self._take_back(kind, state, sorted(group))
        follow(journal_for(self.using), {run_of(row[0], row[4]): row[3] for row in rows})
        failpoints.hit("reap.updated")
        return [Reaped(*row[:4]) for row in rows]

    def _take_back(self, kind: str, state: str, ids: list[int]) -> None:
        columns, params = "", []
        if state != "canceled":
            columns = "error_class=%s, error=%s, error_key=%s, "
            params = [LEASE_EXPIRED, LEASE_EXPIRED_TEXT, error_key(kind, LEASE_EXPIRED)]
        if state != "ready":
            columns += "finished_at={now}, "
        self.change(
            f"UPDATE gnl_django_job {self.BY_KEY} SET {columns}state=%s, claim_token=NULL, "
            f"lease_expires_at=NULL WHERE id IN {marks(ids)} AND state='running' "
            "AND lease_expires_at <= {now}",
            [*params, state, *ids],
        )

    # operators

    def retry(self, ids: Sequence[int], *, skip_locked: bool) -> list[int]:
        """Choose the rows that may be revived, then one UPDATE by primary key."""
        lock = self.LOCK if skip_locked else self.LOCK.removesuffix(" SKIP LOCKED")

        def work() -> list[int]:
            found = self.rows(
                f"SELECT id, run_id FROM gnl_django_job {self.BY_KEY} WHERE id IN {marks(ids)} "
                f"AND state IN ('dead', 'canceled') ORDER BY id{lock}",
                ids,
            )
            chosen = [row[0] for row in found]
            if chosen:
                text = RETRY.replace("<by key>", self.BY_KEY)
                self.change(f"{text}IN {marks(chosen)}", chosen)
                revive(journal_for(self.using), [run_of(*row) for row in found])
            return chosen

        return self.own(work)

    def cancel(self, job_id: int, reason: str) -> Canceled | None:
        """One conditional UPDATE, then a read of what it found."""

        def work() -> Canceled | None:
            if not self.change(CANCEL, [reason, job_id]):
                return None
            text = "SELECT kind, org, state, run_id FROM gnl_django_job WHERE id = %s"
            *found, run_id = self.rows(text, [job_id])[0]
            canceled = Canceled(*found)
            follow(journal_for(self.using), {run_of(job_id, run_id): canceled.state})
            return canceled

        return self.own(work)
