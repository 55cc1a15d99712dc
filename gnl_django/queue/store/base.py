"""The store's interface: every state write of the queue and every SQL text behind one class.

One module per vendor implements it; the conformance suite (tests/conformance) holds all of them to
the same behaviour. Nothing above this package writes a state column. Callers: `queue.api`,
`queue.operator`, `queue.worker` and its parts.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from gnl_django.core import failpoints
from gnl_django.core.heartbeat import Verdict
from gnl_django.core.leases import Lease
from gnl_django.core.statements import Statements

CLAIM_MAX = 100
PROMOTE_BATCH = 500
REAP_BATCH = 100
LEASE_EXPIRED = "gnl_django.errors.LeaseExpired"
LEASE_EXPIRED_TEXT = "LeaseExpired: the worker vanished or stood still, and its lease ran out"


class NewRow(NamedTuple):
    """A job about to be inserted; values are checked and texts canonical already."""

    kind: str
    queue: str
    org: str
    priority: int
    payload: str | None
    meta: str
    sensitive: bool
    key: str | None
    dedup: str | None
    run_at: datetime | None
    delay: float
    max_attempts: int


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """One pass over one queue's ring (queue.md R14-R20)."""

    queue: str
    kinds: tuple[str, ...]
    n: int
    cursor: str
    #: The cursor is the lane to start AT, not after (a worker's first pass, R14).
    at_cursor: bool
    paused: tuple[str, ...]
    token: str
    ttl: float
    worker: str
    max_attempts: int | None


class ClaimedRow(NamedTuple):
    """A job as its claim returned it; texts are not parsed yet.

    A tuple, as all that is made for each job here: a frozen dataclass takes three times as long.
    """

    id: int
    kind: str
    org: str
    queue: str
    payload: str | None
    meta: str
    run_id: str | None
    scheduled_for: datetime | None
    attempt: int
    max_attempts: int
    priority: int


def run_of(job_id: int, run_id: str | None) -> str:
    """Return the id of a job's durable run."""
    return run_id or f"job:{job_id}"


def claimed_row(row: Sequence[Any], scheduled_for: datetime | None) -> ClaimedRow:
    """Return the ClaimedRow of a row of CLAIM_COLUMNS, with its one time already converted."""
    return ClaimedRow._make((*row[:7], scheduled_for, *row[8:11]))


@dataclass(frozen=True, slots=True)
class Claimed:
    """What one pass took, in the order in which handlers start, and the ring it saw."""

    rows: list[ClaimedRow]
    lanes: int
    last_lane: str


NOTHING = Claimed([], 0, "")


def in_start_order(rows: Iterable[ClaimedRow], request: ClaimRequest) -> list[ClaimedRow]:
    """Return claimed rows by rank in their lane, then by the lane's place in the ring (R15)."""
    ranks: dict[str, int] = {}
    placed = []
    for row in sorted(rows, key=lambda row: (-row.priority, row.id)):
        rank = ranks[row.org] = ranks.get(row.org, -1) + 1
        wrapped = row.org < request.cursor or (row.org == request.cursor and not request.at_cursor)
        placed.append((rank, wrapped, row.org, row))
    placed.sort(key=lambda place: place[:3])
    return [row for _, _, _, row in placed]


class Outcome(NamedTuple):
    """How an attempt ended, as it is to be written (queue.md R33-R44).

    `state` is what the job becomes unless somebody asked to cancel it, `refund` gives the attempt
    back, `recorded` is the outcome of the Attempt row ("" = none), `delay` is in seconds.
    """

    id: int
    token: str
    state: str
    refund: bool = False
    deferred: bool = False
    delay: float = 0.0
    result: str | None = None
    note: str = ""
    recorded: str = ""
    error_class: str = ""
    error: str = ""
    error_key: str | None = None
    traceback: str = ""
    #: The durable run that the attempt has entered; it follows the job.
    run_id: str = ""

    @property
    def point(self) -> str:
        """Name the fail points of this outcome (queue.md 4.8)."""
        if self.recorded == "released":
            return "release"
        return {"succeeded": "complete", "dead": "bury", "canceled": "cancel"}.get(
            self.state, "retry"
        )


def canceled(claim: Lease | Outcome) -> Outcome:
    """Return the outcome of an attempt that was asked to stop (R29)."""
    return Outcome(claim.id, claim.token, "canceled", refund=True, recorded="canceled")


class Settled(NamedTuple):
    """What became of one outcome: the state written, or None when the claim is no longer ours.

    `locked`: another transaction holds the row; it is ours still, so try again.
    """

    id: int
    token: str
    state: str | None
    locked: bool = False


class Look(NamedTuple):
    """What an idle worker would have to do: `work` now, or `due_in` seconds (None: nothing)."""

    work: bool
    due_in: float | None = None


@dataclass(frozen=True, slots=True)
class Reaped:
    """A job whose lease had run out, and the state it was given."""

    id: int
    kind: str
    org: str
    state: str


@dataclass(frozen=True, slots=True)
class Canceled:
    """What cancel_job found: the job's state afterwards."""

    kind: str
    org: str
    state: str


class Store(Statements, ABC):
    """The queue's rows on one database alias. Not shared between threads."""

    #: Added to a SELECT whose rows are then updated.
    LOCK = ""
    #: Hint of the index by which the running jobs of a lane are counted.
    RUNNING_BY = ""
    #: Hint of the index by which jobs are listed.
    LISTED_BY = ""
    #: Hint of the primary key.
    BY_KEY = ""
    #: Hint of the index by which dead jobs are found, oldest first.
    DEAD_BY = ""

    def __init__(self, using: str, *, prepare: bool = False) -> None:
        super().__init__(using)
        self.prepare = prepare
        #: Ids that keys have led to: of jobs that were stored already.
        self.found: set[int] = set()

    def read(self, text: str, params: Any) -> list[Any]:
        """Run one read that is not part of a transaction of ours and return its rows."""
        return self.rows(text, params)

    # enqueue

    @abstractmethod
    def insert(self, row: NewRow) -> int:
        """Store one job in the caller's transaction; return its id, or the id of its key's job."""

    @abstractmethod
    def insert_many(self, rows: Sequence[NewRow]) -> list[int]:
        """Store jobs in call order in the caller's transaction; return their ids (R6)."""

    @abstractmethod
    def find_keys(self, dedups: Sequence[str]) -> dict[str, int]:
        """Return the ids of the jobs stored under these keys, and note them in `found`."""

    def lock_lane(self, queue: str, org: str) -> None:
        """Make the depth that follows exact against other callers, where possible (R7)."""

    def depth(self, queue: str, org: str, stop_at: int) -> int:
        """Return the unfinished jobs of a lane, counted up to `stop_at` (R7)."""
        # Each state in a sub-select of its own: only then is its partial index used.
        part = (
            "(SELECT count(*) FROM (SELECT 1 FROM gnl_django_job {} "
            "WHERE state='{}' AND queue=%s AND org=%s LIMIT %s) c_{})"
        )
        by = {"ready": "", "scheduled": "", "running": self.RUNNING_BY}
        text = " + ".join(part.format(by[state], state, state) for state in by)
        with self.execute(f"SELECT {text}", (queue, org, stop_at) * 3) as cursor:
            return min(int(cursor.fetchone()[0]), stop_at)

    # the worker's pass

    def look(self, queues: Sequence[str], kinds: Sequence[str]) -> Look:
        """Tell whether there is anything to claim, promote or reap, at the price of a read.

        A store whose promote, reap and claim begin with a read of their own says that there is.
        """
        return Look(work=True)

    @abstractmethod
    def first_lane(self, queue: str, kinds: Sequence[str]) -> str | None:
        """Return the org of the ready job with the smallest id, None without one (R14)."""

    @abstractmethod
    def claim(self, request: ClaimRequest) -> Claimed:
        """Take up to `request.n` jobs of one queue's ring, each now running under the token."""

    @abstractmethod
    def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        """Write outcomes, each only while its token is still the row's; never wait for a row."""

    def exchange(
        self, outcomes: Sequence[Outcome], request: ClaimRequest
    ) -> tuple[list[Settled], Claimed]:
        """Settle and claim; in one transaction where the database allows (R66)."""
        return self.settle(outcomes), self.claim(request)

    def give_back(self, token: str) -> None:
        """Release what the claim with `token` took, if it took anything, at no cost (R66)."""
        text = "SELECT id FROM gnl_django_job WHERE state='running' AND claim_token=%s"
        with self.execute(text, [token]) as cursor:
            found = [row[0] for row in cursor.fetchall()]
        self.settle([Outcome(i, token, "ready", refund=True, recorded="released") for i in found])

    def recorded(self, outcomes: Sequence[Outcome]) -> dict[tuple[int, str], str]:
        """Return by (id, token) the states that those of `outcomes` have left in their rows.

        For claims that are no longer ours: a COMMIT that nobody answered may have happened (R66).
        Whoever else takes a claim away leaves an Attempt row with its token.
        """
        marks = ", ".join(["%s"] * len(outcomes))
        text = (
            "SELECT j.id, j.state, a.claim_token, a.outcome FROM gnl_django_job j "
            "LEFT JOIN gnl_django_attempt a ON a.job_id = j.id "
            f"AND a.claim_token IN ({marks}) WHERE j.id IN ({marks})"
        )
        params = [outcome.token for outcome in outcomes] + [outcome.id for outcome in outcomes]
        with self.execute(text, params) as cursor:
            rows = cursor.fetchall()
        states = {row[0]: row[1] for row in rows}
        attempts = {(row[0], row[2]): row[3] for row in rows}
        found: dict[tuple[int, str], str] = {}
        for outcome in outcomes:
            key = outcome.id, outcome.token
            recorded = attempts.get(key, "")
            if recorded == "canceled":
                found[key] = "canceled"
            elif recorded == outcome.recorded and (recorded or states.get(key[0]) == outcome.state):
                found[key] = outcome.state
        return found

    @abstractmethod
    def renew(self, leases: Sequence[Lease], ttl: float) -> list[tuple[Lease, Verdict]]:
        """Extend leases to `ttl` seconds from now; never wait for a row (R25)."""

    @abstractmethod
    def progress(self, reports: Sequence[tuple[int, str, str]]) -> None:
        """Write progress as (id, token, JSON) where the claim is ours; never wait for a row."""

    @abstractmethod
    def promote(self) -> float | None:
        """Make due jobs ready (R13); return seconds to the next due one, None without one."""

    @abstractmethod
    def reap(self) -> list[Reaped]:
        """Take back every job whose lease has run out (R32)."""

    # operators

    @abstractmethod
    def retry(self, ids: Sequence[int], *, skip_locked: bool) -> list[int]:
        """Make dead and canceled jobs of `ids` ready again; return those changed (R41)."""

    @abstractmethod
    def cancel(self, job_id: int, reason: str) -> Canceled | None:
        """Cancel a waiting job, or ask a running one to stop; None when it is neither (R42)."""


class Points:
    """Passes the fail points of a batch: each outcome it contains once (queue.md 4.8)."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self._names = sorted({outcome.point for outcome in outcomes})

    def hit(self, moment: str) -> None:
        """Pass `moment` (begin, updated, committed) of each name."""
        for name in self._names:
            failpoints.hit(f"{name}.{moment}")


CLAIM_COLUMNS = (
    "id, kind, org, queue, payload, meta, run_id, scheduled_for, attempt, max_attempts, priority"
)

INSERT_COLUMNS = (
    "kind", "queue", "org", "state", "priority", "payload", "meta", "sensitive", "key", "dedup",
    "run_at", "attempt", "max_attempts", "revivals", "deferrals",
    "cancel_reason", "note", "error_class", "error", "enqueued_at",
)  # fmt: skip
