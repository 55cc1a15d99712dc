"""The queue on PostgreSQL: one statement an act, one pipeline a pass.

The texts stand in `postgresql_sql`. A pass sends planner switches, settle and claim as one pipeline
(`core.pipeline`) on the autocommit connection: its implicit transaction ends at the sync, without
BEGIN and COMMIT (1.45 -> 0.88 ms at 10 jobs). Inside a caller's transaction, or with fail points
armed, the same texts run one by one.
"""

import hashlib
from collections.abc import Sequence
from datetime import UTC
from operator import attrgetter
from typing import Any

from django.db import OperationalError

from gnl_django.core import clock, direct, failpoints, pipeline
from gnl_django.core.db import alone, own_transaction, retrying, strict_isolation
from gnl_django.core.heartbeat import Verdict
from gnl_django.core.leases import Lease
from gnl_django.core.pipeline import array, column
from gnl_django.queue.store import postgresql_sql as sql
from gnl_django.queue.store.base import (
    LEASE_EXPIRED,
    LEASE_EXPIRED_TEXT,
    PROMOTE_BATCH,
    REAP_BATCH,
    Canceled,
    Claimed,
    ClaimRequest,
    Look,
    NewRow,
    Outcome,
    Points,
    Reaped,
    Settled,
    Store,
    canceled,
    claimed_row,
    in_start_order,
)

INSERT_BATCH = 5_000
KEY_TRIES = 5
Statement = tuple[str, dict[str, Any]]


class PostgresStore(Store):
    """The store of a PostgreSQL alias."""

    # enqueue

    def insert(self, row: NewRow) -> int:
        """One INSERT; with a key, at most five rounds against a key that appears and vanishes."""
        params = row._asdict()
        timed = row.run_at is not None or row.delay > 0
        text = sql.insert(keyed=row.dedup is not None, timed=timed)
        if row.dedup is None:
            return int(self.rows(text, params)[0][0])
        for _ in range(KEY_TRIES):
            for found in self.rows(text, params):
                return int(found[0])
            for found in self.find_keys([row.dedup]).values():
                return found
        raise OperationalError(f"key {row.key!r}: a job appears and vanishes under it; try again")

    def insert_many(self, rows: Sequence[NewRow]) -> list[int]:
        """INSERT .. SELECT unnest, up to 5,000 rows a statement."""
        ids: list[int] = []
        for at in range(0, len(rows), INSERT_BATCH):
            failpoints.hit("enqueue_many.chunk")
            ids += self._insert_batch(rows[at : at + INSERT_BATCH])
        return ids

    def _insert_batch(self, rows: Sequence[NewRow]) -> list[int]:
        todo = list(rows)
        keyed: dict[str, int] = {}
        plain: list[int] = []
        for _ in range(KEY_TRIES):
            params = {
                name: column(values)
                for name, values in zip(NewRow._fields, zip(*todo, strict=True), strict=True)
            }
            returned = self.rows(sql.INSERT_MANY, params)
            plain += sorted(found[0] for found in returned if found[1] is None)
            keyed.update({found[1]: found[0] for found in returned if found[1] is not None})
            missing = [row.dedup for row in rows if row.dedup and row.dedup not in keyed]
            if missing:
                keyed.update(self.find_keys(missing))
            todo = [row for row in rows if row.dedup and row.dedup not in keyed]
            if not todo:
                unkeyed = iter(plain)
                return [keyed[row.dedup] if row.dedup else next(unkeyed) for row in rows]
        raise OperationalError("jobs appear and vanish under the keys of this call; try again")

    def find_keys(self, dedups: Sequence[str]) -> dict[str, int]:
        """One look-up through the unique index."""
        found: dict[str, int] = dict(self.rows(sql.FIND_KEYS, {"dedups": array(dedups)}))
        self.found.update(found.values())
        return found

    def lock_lane(self, queue: str, org: str) -> None:
        """Take the lane's advisory lock until the transaction ends."""
        digest = hashlib.sha256(f"{queue}\0{org}".encode()).digest()
        number = int.from_bytes(digest[:8], "big", signed=True)
        self.rows("SELECT pg_advisory_xact_lock(%(number)s)", {"number": number})

    # the worker's pass

    def first_lane(self, queue: str, kinds: Sequence[str]) -> str | None:
        """One ordered read of the ready index."""
        rows = self._batch([(sql.FIRST_LANE, {"queue": queue, "kinds": array(kinds)})])[0]
        return rows[0][0] if rows else None

    def look(self, queues: Sequence[str], kinds: Sequence[str]) -> Look:
        """One read; with fail points armed every pass is whole, so that it comes to them."""
        if failpoints.armed():
            return Look(work=True)
        params = {"queues": array(queues), "kinds": array(kinds)}
        ready, expired, due_in = self._batch([(sql.LOOK, params)])[0][0]
        return Look(ready or expired or (due_in is not None and due_in <= 0), due_in)

    def claim(self, request: ClaimRequest) -> Claimed:
        """One statement."""
        return self.exchange([], request)[1]

    def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        """At most three statements: successes without and with a result, and all else."""
        return self._exchange(outcomes, None)[0] if outcomes else []

    def exchange(
        self, outcomes: Sequence[Outcome], request: ClaimRequest
    ) -> tuple[list[Settled], Claimed]:
        """Settle and claim in one pipeline and one transaction."""
        settled, rows = self._exchange(outcomes, request)
        return settled, _claimed(rows, request)

    def _exchange(
        self, outcomes: Sequence[Outcome], request: ClaimRequest | None
    ) -> tuple[list[Settled], list[Any]]:
        # A row is told by its id: of two outcomes of one job, a stale one among them, one waits.
        single = {outcome.id: outcome for outcome in outcomes}
        statements = _settling(list(single.values()))
        settles = len(statements)
        statements += _following(outcomes)
        if request is not None:
            statements.append(_claiming(request))
        if failpoints.armed():
            answers = self._step_by_step(outcomes, statements, claiming=request is not None)
        else:
            answers = self._batch(statements)
        rows = answers[-1] if request is not None else []
        states = _states(answers[:settles])
        settled = [Settled(job_id, single[job_id].token, state) for job_id, state in states.items()]
        if len(settled) < len(outcomes):
            left = [o for o in outcomes if o.id not in states or single[o.id] is not o]
            settled += self._unwritten(left)
        return settled, rows

    def _unwritten(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        """Tell what became of claims whose outcome was not written; end those asked to (R29)."""
        rows = self._batch([(sql.OURS, _held(outcomes))])[0]
        ours = {(row[0], row[1]): row[2] for row in rows}
        asked = [
            canceled(o)._replace(run_id=o.run_id)
            for o in outcomes
            if o.state == "succeeded" and ours.get((o.id, o.token))
        ]
        statements = _settling(asked)
        states = _states(self._batch([*statements, *_following(asked)])[: len(statements)])
        return [
            Settled(o.id, o.token, states.get(o.id), locked=o.id not in states)
            if (o.id, o.token) in ours
            else Settled(o.id, o.token, None)
            for o in outcomes
        ]

    def _step_by_step(
        self, outcomes: Sequence[Outcome], statements: list[Statement], *, claiming: bool
    ) -> list[list[Any]]:
        points = Points(outcomes)
        points.hit("begin")
        if claiming:
            failpoints.hit("claim.begin")
        with own_transaction(self.connection):
            answers = [self.rows(*statement) for statement in statements]
            points.hit("updated")
            if claiming:
                failpoints.hit("claim.updated")
        points.hit("committed")
        if claiming:
            failpoints.hit("claim.committed")
        return answers

    def renew(self, leases: Sequence[Lease], ttl: float) -> list[tuple[Lease, Verdict]]:
        """One statement for all leases."""
        by_key = {(lease.id, lease.token): lease for lease in leases}
        failpoints.hit("renew.begin")
        rows = self._marked("renew", sql.RENEW, {**_held(leases), "ttl": ttl})
        return [(by_key[row[0], row[1]], _verdict(row[2], ours=row[3])) for row in rows]

    def progress(self, reports: Sequence[tuple[int, str, str]]) -> None:
        """One statement for all."""
        ids, tokens, texts = zip(*sorted(reports), strict=True)
        params = {"ids": array(ids), "tokens": array(tokens), "progress": array(texts)}
        self._batch([(sql.PROGRESS, params)])

    def promote(self) -> float | None:
        """One statement for each 500 due jobs."""
        while True:
            moved, next_due = self._marked("promote", sql.PROMOTE, {"batch": PROMOTE_BATCH})[0]
            if moved < PROMOTE_BATCH:
                return None if next_due is None else max(0.0, float(next_due))

    def reap(self) -> list[Reaped]:
        """One statement for each 100 expired leases, their Attempt rows included."""
        params = {
            "batch": REAP_BATCH,
            "error_class": LEASE_EXPIRED,
            "error": LEASE_EXPIRED_TEXT,
        }
        reaped: list[Reaped] = []
        while True:
            failpoints.hit("reap.selected")
            rows = self._marked("reap", sql.REAP, params)
            reaped += [Reaped(*row) for row in rows]
            if len(rows) < REAP_BATCH:
                return reaped

    # operators

    def retry(self, ids: Sequence[int], *, skip_locked: bool) -> list[int]:
        """One conditional UPDATE."""
        text = sql.RETRY_UNLOCKED if skip_locked else sql.RETRY
        params = {"ids": array(ids)}
        return [row[0] for row in alone(self.connection, lambda: self.rows(text, params))]

    def cancel(self, job_id: int, reason: str) -> Canceled | None:
        """One conditional UPDATE."""
        params = {"id": job_id, "reason": reason}
        rows = alone(self.connection, lambda: self.rows(sql.CANCEL, params))
        return Canceled(*rows[0]) if rows else None

    # how statements are sent

    def read(self, text: str, params: dict[str, Any]) -> list[Any]:
        """Run one read; outside a caller's transaction under the planner switches."""
        return self._batch([(text, params)])[0]

    def rows(self, text: str, params: Any = ()) -> list[Any]:
        """Run one statement and return its rows, past Django's cursors where nobody watches."""
        if isinstance(params, dict):
            found = direct.rows(self.connection, clock.render(text, "postgresql"), params)
            if found is not None:
                return found
        return super().rows(text, params)

    def _marked(self, name: str, text: str, params: dict[str, Any]) -> list[Any]:
        if not failpoints.armed():
            return self._batch([(text, params)])[0]
        with own_transaction(self.connection):
            rows = self.rows(text, params)
            failpoints.hit(f"{name}.updated")
        failpoints.hit(f"{name}.committed")
        return rows

    def _batch(self, statements: list[Statement]) -> list[list[Any]]:
        """Run statements as one transaction, in one round trip where nothing stands against it."""
        if not statements:
            return []
        connection = self.connection
        if connection.in_atomic_block or not connection.get_autocommit():
            return [self.rows(*statement) for statement in statements]
        if strict_isolation(connection):
            with own_transaction(connection):
                self.rows(sql.PLANNER, {})
                return [self.rows(*statement) for statement in statements]
        return retrying(connection, lambda: self._pipeline(statements))

    def _pipeline(self, statements: list[Statement]) -> list[list[Any]]:
        connection = self.connection
        connection.ensure_connection()
        sent = [(clock.render(text, "postgresql"), params) for text, params in statements]
        try:
            with connection.wrap_database_errors:
                switched = [(sql.PLANNER, {}), *sent]
                return pipeline.run(connection.connection, switched, prepare=self.prepare)[1:]
        finally:
            if connection.queries_logged:
                for text, _ in sent:
                    connection.queries_log.append({"sql": text, "time": "0.000"})


def _settling(outcomes: Sequence[Outcome]) -> list[Statement]:
    ordered = sorted(outcomes, key=attrgetter("id"))
    plain = [o for o in ordered if o.state == "succeeded" and o.result is None and not o.note]
    results = [o for o in ordered if o.state == "succeeded" and (o.result is not None or o.note)]
    others = [o for o in ordered if o.state != "succeeded"]
    statements: list[Statement] = []
    if plain:
        statements.append((sql.SETTLE_PLAIN, _held(plain)))
    if results:
        more = {
            "results": array(o.result for o in results),
            "notes": array(o.note for o in results),
        }
        statements.append((sql.SETTLE_RESULTS, _held(results) | more))
    if others:
        more = {
            "states": array(o.state for o in others),
            "refunds": array(int(o.refund) for o in others),
            "deferred": array(int(o.deferred) for o in others),
            "delays": array(o.delay for o in others),
            "notes": array(o.note for o in others),
            "recorded": array(o.recorded for o in others),
            "classes": array(o.error_class for o in others),
            "errors": array(o.error for o in others),
            "keys": array(o.error_key for o in others),
            "tracebacks": array(o.traceback for o in others),
        }
        statements.append((sql.SETTLE, _held(others) | more))
    return statements


def _following(outcomes: Sequence[Outcome]) -> list[Statement]:
    """Return the statement that goes behind a settle of attempts which have entered their run."""
    entered = [outcome.id for outcome in outcomes if outcome.run_id]
    return [(sql.FOLLOW, {"ids": array(entered)})] if entered else []


def _held(claims: Sequence[Outcome | Lease]) -> dict[str, Any]:
    # Tokens are hexadecimal digits: nothing in them is to be quoted.
    return {
        "ids": "{" + ",".join([str(claim.id) for claim in claims]) + "}",
        "tokens": "{" + ",".join([claim.token for claim in claims]) + "}",
    }


def _states(answers: list[list[Any]]) -> dict[int, str]:
    """Return what settles have written, by job."""
    return {job_id: state for answer in answers for job_id, state in answer}


def _claiming(request: ClaimRequest) -> Statement:
    return (
        sql.CLAIM_AT_CURSOR if request.at_cursor else sql.CLAIM,
        {
            "queue": request.queue,
            "kinds": array(request.kinds),
            "n": request.n,
            "hops": request.n + len(request.paused),
            "cursor": request.cursor,
            "paused": array(request.paused),
            "token": request.token,
            "ttl": request.ttl,
            "worker": request.worker,
            "max_attempts": request.max_attempts,
        },
    )


def _claimed(rows: list[Any], request: ClaimRequest) -> Claimed:
    taken = [
        claimed_row(row, row[7] and row[7].replace(tzinfo=UTC))
        for row in rows
        if row[0] is not None
    ]
    return Claimed(in_start_order(taken, request), lanes=rows[0][-2], last_lane=rows[0][-1] or "")


def _verdict(cancel: bool | None, *, ours: bool) -> Verdict:
    if cancel is None:
        return Verdict.LOCKED if ours else Verdict.GONE
    return Verdict.CANCELED if cancel else Verdict.RENEWED


def build(using: str, *, prepare: bool) -> PostgresStore:
    """Return the store of alias `using`."""
    return PostgresStore(using, prepare=prepare)
