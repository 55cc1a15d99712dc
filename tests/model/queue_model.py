"""The queue in plain Python: what each act must do to the rows, by the rules of queue.md.

Time is the instant that the test sets; nothing here knows SQL. Used by `test_queue_machine`.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

OPEN = ("scheduled", "ready", "running")


@dataclass
class Row:
    """One job as it must be stored."""

    id: int
    kind: str
    queue: str
    org: str
    priority: int
    payload: object
    state: str
    run_at: datetime
    max_attempts: int
    key: str | None = None
    attempt: int = 0
    revivals: int = 0
    deferrals: int = 0
    claim_token: str | None = None
    lease_expires_at: datetime | None = None
    cancel_requested_at: datetime | None = None
    cancel_reason: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    result: object = None
    #: (number, revival, outcome) of each Attempt row.
    attempts: list[tuple[int, int, str]] = field(default_factory=list)

    def leave(self, state: str, now: datetime) -> None:
        """Give up the claim and become `state`."""
        self.state = state
        self.claim_token = self.lease_expires_at = None
        self.finished_at = now if state not in OPEN else None

    def record(self, outcome: str) -> None:
        """Add an Attempt row."""
        self.attempts.append((self.attempt, self.revivals, outcome))


class Model:
    """All rows, and whose turn it is for each worker and queue."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self.rows: dict[int, Row] = {}
        self._cursors: dict[tuple[str, str], tuple[str, bool]] = {}

    def keyed(self, org: str, key: str) -> Row | None:
        """Return the job stored under a key."""
        return next((r for r in self.rows.values() if (r.org, r.key) == (org, key)), None)

    def depth(self, queue: str, org: str) -> int:
        """Return the unfinished jobs of a lane."""
        return sum(
            row.state in OPEN and (row.queue, row.org) == (queue, org) for row in self.rows.values()
        )

    def promote(self) -> None:
        """R13."""
        for row in self.rows.values():
            if row.state == "scheduled" and row.run_at <= self.now:
                row.state = "ready"

    def claim(
        self, worker: str, queue: str, kinds: tuple[str, ...], n: int, token: str, ttl: timedelta
    ) -> list[int]:
        """R14, R15, R19: mark what a pass takes; return the ids in start order."""
        ready = [
            row
            for row in self.rows.values()
            if row.state == "ready" and row.queue == queue and row.kind in kinds
        ]
        place = (worker, queue)
        if place not in self._cursors:
            if not ready:
                return []
            self._cursors[place] = (min(ready, key=lambda row: row.id).org, True)
        cursor, at_cursor = self._cursors[place]
        orgs = sorted({row.org for row in ready})
        ring = [org for org in orgs if org > cursor or (at_cursor and org == cursor)]
        ring = (ring + [org for org in orgs if org not in ring])[:n]
        taken = []
        for position, org in enumerate(ring):
            lane = sorted(
                (row for row in ready if row.org == org), key=lambda row: (-row.priority, row.id)
            )
            quota = n // len(ring) + (1 if position < n % len(ring) else 0)
            taken += [(rank, position, row) for rank, row in enumerate(lane[:quota])]
        taken.sort(key=lambda item: item[:2])
        for _, _, row in taken:
            row.state, row.claim_token = "running", token
            row.attempt += 1
            row.lease_expires_at, row.started_at = self.now + ttl, self.now
        if taken:
            self._cursors[place] = (taken[-1][2].org, False)
        return [row.id for _, _, row in taken]

    def holder(self, job: int, token: str) -> Row | None:
        """Return the row while the claim is its newest."""
        row = self.rows[job]
        return row if (row.state, row.claim_token) == ("running", token) else None

    def settle(
        self,
        job: int,
        token: str,
        state: str,
        *,
        recorded: str = "",
        delay: timedelta = timedelta(0),
        refund: bool = False,
        deferred: bool = False,
        result: object = None,
    ) -> str | None:
        """R29, R33-R44: return the state written, None for a stale claim."""
        row = self.holder(job, token)
        if row is None:
            return None
        if row.cancel_requested_at is not None:
            state, recorded, refund, deferred, result = "canceled", "canceled", True, False, None
        if recorded:
            row.record(recorded)
        row.attempt -= int(refund)
        row.deferrals += int(deferred)
        row.result = result
        if state == "scheduled":
            row.run_at = self.now + delay
        row.leave(state, self.now)
        return state

    def reap(self) -> dict[int, str]:
        """R32."""
        done = {}
        for row in self.rows.values():
            if row.state != "running" or (row.lease_expires_at or self.now) > self.now:
                continue
            row.record("lease_lost")
            if row.cancel_requested_at is not None:
                row.leave("canceled", self.now)
            else:
                row.leave("dead" if row.attempt >= row.max_attempts else "ready", self.now)
            done[row.id] = row.state
        return done

    def cancel(self, job: int, reason: str) -> bool:
        """R42."""
        row = self.rows[job]
        if row.state not in OPEN:
            return False
        if row.cancel_requested_at is None:
            row.cancel_requested_at, row.cancel_reason = self.now, reason
        if row.state != "running":
            row.state, row.finished_at = "canceled", self.now
        return True

    def retry(self, job: int) -> bool:
        """R41."""
        row = self.rows[job]
        if row.state not in {"dead", "canceled"}:
            return False
        row.state, row.attempt, row.run_at = "ready", 0, self.now
        row.revivals += 1
        row.finished_at = row.cancel_requested_at = None
        row.cancel_reason, row.result = "", None
        return True
