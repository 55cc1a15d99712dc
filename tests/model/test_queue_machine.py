"""Random histories of the queue against a model in plain Python (reliability.md 5.1).

One connection, the database's clock in the test's hand, each example rolled back. After every act
the whole table must be the model's. A failure that Hypothesis finds becomes a test of its own in
`test_found`.
"""

import os
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gnl_django import (
    NewJob,
    PermanentFailure,
    QueueDepthExceeded,
    cancel_job,
    enqueue,
    enqueue_many,
    retry_job,
    retry_jobs,
)
from gnl_django.core import clock
from gnl_django.core.heartbeat import Verdict
from gnl_django.core.leases import Lease
from gnl_django.errors import Deferral, InvalidPayload
from gnl_django.models import Attempt, Job
from gnl_django.queue import outcomes
from gnl_django.queue.kinds import JobKind, job
from gnl_django.queue.options import kinds
from gnl_django.queue.rings import Rings
from gnl_django.queue.store import store_for
from gnl_django.queue.store.base import ClaimedRow
from tests.model.queue_model import Model, Row

NOON = datetime(2031, 5, 7, 12, 0, 0, tzinfo=UTC)
TTL = timedelta(seconds=30)
KINDS = ("model.a", "model.b")
COLUMNS = (
    "id", "kind", "queue", "org", "priority", "payload", "state", "run_at", "max_attempts", "key",
    "attempt", "revivals", "deferrals", "claim_token", "lease_expires_at", "cancel_requested_at",
    "cancel_reason", "started_at", "finished_at", "result",
)  # fmt: skip
NIGHTLY = os.environ.get("GNL_MODEL", "") == "nightly"
PROFILE = settings(
    max_examples=2000 if NIGHTLY else 60,
    stateful_step_count=80 if NIGHTLY else 30,
    derandomize=not NIGHTLY,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)

orgs = st.sampled_from(["", "a", "A", "b"])
queues = st.sampled_from(["default", "other"])
kind_names = st.sampled_from(KINDS)


class QueueMachine(RuleBasedStateMachine):
    """Acts on the real queue and on the model alike."""

    jobs: "Bundle[int]" = Bundle("jobs")
    claims: "Bundle[tuple[ClaimedRow, str]]" = Bundle("claims")

    @initialize(target=jobs, lanes=st.lists(orgs, min_size=2, max_size=6))
    def begin(self, lanes: list[str]) -> Any:
        """Open the example's transaction, stop the clock, and give a few jobs."""
        self.transaction = transaction.atomic()
        self.transaction.__enter__()
        self.override = clock.override(NOON)
        self.now = self.override.__enter__()
        self.model = Model(NOON)
        self.numbers = 0
        self.store = store_for("default")
        self.workers = {
            name: Rings(
                lambda name=name: KINDS if name == "both" else KINDS[:1],
                ttl=TTL.total_seconds(),
                worker=name,
                max_attempts=None,
            )
            for name in ("both", "one")
        }
        # SQLite's clock counts thousandths.
        self.tick = timedelta(milliseconds=1 if connection.vendor == "sqlite" else 0.001)
        return multiple(*(self._first(at, org) for at, org in enumerate(lanes)))

    def _first(self, at: int, org: str) -> int:
        options = {
            "kind": KINDS[at % 2],
            "queue": "default",
            "org": org,
            "max_attempts": 1 + at % 3,
        }
        job_id = enqueue(options["kind"], at, org=org or None, max_attempts=1 + at % 3)
        self._new(job_id, options, at)
        return job_id

    def teardown(self) -> None:
        """Roll everything back."""
        if hasattr(self, "transaction"):
            self.override.__exit__(None, None, None)
            transaction.set_rollback(True)
            self.transaction.__exit__(None, None, None)

    # giving work

    def _new(self, job_id: int, options: dict[str, Any], payload: object) -> None:
        delay = timedelta(seconds=options.get("delay") or 0)
        self.model.rows[job_id] = Row(
            id=job_id,
            kind=options["kind"],
            queue=options["queue"],
            org=options["org"],
            priority=options.get("priority") or 0,
            payload=payload,
            state="scheduled" if delay else "ready",
            run_at=self.model.now + delay,
            max_attempts=options["max_attempts"],
            key=options.get("key"),
        )

    @rule(
        target=jobs,
        kind=kind_names,
        queue=queues,
        org=orgs,
        delay=st.sampled_from([None, 0, 1, TTL.total_seconds()]),
        key=st.sampled_from([None, None, "k", "K"]),
        priority=st.sampled_from([0, 0, 5, -5]),
        max_depth=st.sampled_from([None, None, 1, 3]),
        max_attempts=st.sampled_from([1, 3]),
    )
    def give(self, max_depth: int | None, **options: Any) -> Any:
        """Give one job."""
        self.numbers += 1
        key, org, queue = options["key"], options["org"], options["queue"]
        given = {**options, "org": org or None}
        kind = given.pop("kind")
        known = self.model.keyed(org, key) if key else None
        depth = self.model.depth(queue, org)
        if known is None and max_depth is not None and depth >= max_depth:
            with pytest.raises(QueueDepthExceeded) as raised:
                enqueue(kind, self.numbers, max_depth=max_depth, **given)
            assert raised.value.depth == min(depth, max_depth)
            return multiple()
        job_id = enqueue(kind, self.numbers, max_depth=max_depth, **given)
        if known is not None:
            assert job_id == known.id
            return multiple()
        assert job_id not in self.model.rows
        self._new(job_id, options, self.numbers)
        return job_id

    @rule(kind=kind_names, delay=st.sampled_from([-1, float("nan")]))
    def give_wrongly(self, kind: str, delay: float) -> None:
        """A delay that is none is refused."""
        with pytest.raises(ValueError):  # noqa: PT011
            enqueue(kind, 1, delay=delay)

    @rule(
        target=jobs,
        lanes=st.lists(orgs, min_size=1, max_size=4),
        kind=kind_names,
        keys=st.lists(st.sampled_from([None, "k", "m"]), min_size=4, max_size=4),
        invalid=st.booleans(),
    )
    def give_many(self, lanes: list[str], kind: str, keys: list[str | None], invalid: bool) -> Any:
        """Give several at once; with one that is invalid nothing is stored."""
        self.numbers += 1
        payloads: list[object] = [self.numbers * 100 + at for at in range(len(lanes))]
        if invalid:
            payloads[-1] = float("nan")
        asked = [
            NewJob(kind, payload, org=org or None, key=key, max_attempts=3)
            for payload, org, key in zip(payloads, lanes, keys, strict=False)
        ]
        if invalid:
            with pytest.raises(InvalidPayload):
                enqueue_many(asked)
            return multiple()
        ids = enqueue_many(asked)
        made = []
        for job_id, payload, org, key in zip(ids, payloads, lanes, keys, strict=False):
            known = self.model.keyed(org, key) if key else None
            if known is not None:
                assert job_id == known.id
                continue
            options = {"kind": kind, "queue": "default", "org": org, "key": key, "max_attempts": 3}
            self._new(job_id, options, payload)
            made.append(job_id)
        assert made == sorted(made)
        return multiple(*made)

    # the worker's acts: only when there is something to do, or most steps would be idle

    def _any(self, *states: str) -> bool:
        return any(row.state in states for row in self.model.rows.values())

    @precondition(lambda self: self._any("scheduled"))
    @rule()
    def promote(self) -> None:
        """Make due jobs ready."""
        ahead = self.store.promote()
        self.model.promote()
        waiting = [r.run_at for r in self.model.rows.values() if r.state == "scheduled"]
        if waiting:
            until = (min(waiting) - self.model.now).total_seconds()
            assert ahead == pytest.approx(until, abs=0.002)
        else:
            assert ahead is None

    @precondition(lambda self: self._any("ready"))
    @rule(
        target=claims,
        worker=st.sampled_from(["both", "one"]),
        queue=queues,
        n=st.sampled_from([1, 2, 3, 7]),
    )
    def claim(self, worker: str, queue: str, n: int) -> Any:
        """Take jobs, in the order of the ring."""
        rings = self.workers[worker]
        taken = rings.claim(self.store, queue, n)
        expected = self.model.claim(worker, queue, rings.kinds(), n, taken.token, TTL)
        assert [row.id for row in taken.claimed.rows] == expected
        for row in taken.claimed.rows:
            assert row.attempt == self.model.rows[row.id].attempt
        return multiple(*((row, taken.token) for row in taken.claimed.rows))

    @rule(claim=claims)
    def renew(self, claim: tuple[ClaimedRow, str]) -> None:
        """Renew a claim, stale or not, expired or not."""
        row, token = claim
        lease = Lease(row.id, token, good_at=0.0)
        ((_, verdict),) = self.store.renew([lease], TTL.total_seconds())
        held = self.model.holder(row.id, token)
        if held is None:
            assert verdict is Verdict.GONE
            return
        asked = held.cancel_requested_at is not None
        assert verdict is (Verdict.CANCELED if asked else Verdict.RENEWED)
        held.lease_expires_at = self.model.now + TTL

    def _settle(self, outcome: Any, **expected: Any) -> None:
        (answer,) = self.store.settle([outcome])
        state = self.model.settle(outcome.id, outcome.token, **expected)
        assert (answer.state, answer.locked) == (state, False)

    @rule(claim=claims, value=st.sampled_from([None, 7, "text"]))
    def complete(self, claim: tuple[ClaimedRow, str], value: object) -> None:
        """The handler returned."""
        row, token = claim
        outcome = outcomes.success(row, Lease(row.id, token, good_at=0.0), value)
        self._settle(outcome, state="succeeded", result=value)

    @rule(claim=claims, permanently=st.booleans())
    def fail(self, claim: tuple[ClaimedRow, str], permanently: bool) -> None:
        """The handler raised."""
        row, token = claim
        error = PermanentFailure("no") if permanently else ValueError("no")
        kind = kinds.known(row.kind)
        assert kind is not None
        outcome = outcomes.failure(row, Lease(row.id, token, good_at=0.0), kind, error)
        dead = permanently or row.attempt >= row.max_attempts
        # model.a: at once, then after 1 s; model.b: the default, 1, 2, 4 .. s.
        wait = min(row.attempt - 1, 1) if row.kind == "model.a" else 2 ** (row.attempt - 1)
        state = "dead" if dead else "scheduled" if wait else "ready"
        self._settle(outcome, state=state, recorded="failed", delay=timedelta(seconds=wait))

    @rule(claim=claims)
    def defer(self, claim: tuple[ClaimedRow, str]) -> None:
        """The handler asks for later."""
        row, token = claim
        error = Deferral("later")
        kind = kinds.known(row.kind)
        assert kind is not None
        outcome = outcomes.failure(row, Lease(row.id, token, good_at=0.0), kind, error)
        wait = timedelta(seconds=max(1.0, error.retry_in))
        self._settle(outcome, state="scheduled", refund=True, deferred=True, delay=wait)

    @rule(claim=claims)
    def release(self, claim: tuple[ClaimedRow, str]) -> None:
        """The worker stops."""
        row, token = claim
        outcome = outcomes.released(Lease(row.id, token, good_at=0.0))
        self._settle(outcome, state="ready", recorded="released", refund=True)

    @precondition(lambda self: self._any("running"))
    @rule()
    def reap(self) -> None:
        """Take back what has run out."""
        done = {found.id: found.state for found in self.store.reap()}
        assert done == self.model.reap()

    # operators

    @rule(job=jobs, reason=st.sampled_from(["", "first", "second"]))
    def cancel(self, job: int, reason: str) -> None:
        """Cancel a job in whatever state."""
        assert cancel_job(job, reason) is self.model.cancel(job, reason)

    @precondition(lambda self: self._any("dead", "canceled", "succeeded"))
    @rule(job=jobs)
    def retry(self, job: int) -> None:
        """Revive a job, if it may be."""
        assert retry_job(job) == (job if self.model.retry(job) else None)

    @precondition(lambda self: self._any("dead", "canceled"))
    @rule()
    def retry_all(self) -> None:
        """Revive all that may be."""
        ids = list(self.model.rows)
        result = retry_jobs(ids)
        changed = sum(self.model.retry(job) for job in ids)
        assert (result.matched, result.changed) == (len(ids), changed)

    # time

    @precondition(lambda self: self._any("running", "scheduled"))
    @rule(
        step=st.sampled_from(["next-", "next", "next", "next+", "1h"]),
    )
    def advance(self, step: str) -> None:
        """Move the database's clock: around the next lease's end or due time, or far."""
        moments = [
            moment
            for row in self.model.rows.values()
            for moment in (row.lease_expires_at, row.run_at)
            if moment is not None and moment > self.model.now
        ]
        ahead = min(moments, default=self.model.now) - self.model.now
        steps = {
            "next-": max(ahead - self.tick, timedelta(0)),
            "next": ahead,
            "next+": ahead + self.tick,
            "1h": timedelta(hours=1),
        }
        self.now.advance(steps[step])
        self.model.now += steps[step]

    @invariant()
    def table_is_the_models(self) -> None:
        """Compare every row and every Attempt row."""
        if not hasattr(self, "model"):
            return
        stored = {row["id"]: row for row in Job.objects.values(*COLUMNS)}
        expected = {
            row.id: {name: getattr(row, name) for name in COLUMNS}
            for row in self.model.rows.values()
        }
        assert stored == expected
        attempts: dict[int, list[tuple[int, int, str]]] = {}
        found = Attempt.objects.order_by("id").values_list("job", "number", "revival", "outcome")
        for job_id, *rest in found:
            attempts.setdefault(job_id, []).append(tuple(rest))
        recorded = {row.id: row.attempts for row in self.model.rows.values() if row.attempts}
        assert attempts == recorded


@pytest.fixture
def declared() -> Any:
    """Two kinds: one that is tried again at once and then after 1 s, one with the default."""

    def handler(payload: Any) -> None:
        """Do nothing: nobody calls it."""

    made: list[JobKind[Any]] = [
        job("model.a", retry_delay=[0, 1])(handler),
        job("model.b")(handler),
    ]
    yield made
    for kind in made:
        kinds.forget(kind.kind)


@pytest.mark.django_db
@pytest.mark.timeout(3600 if NIGHTLY else 300)
def test_the_queue_does_what_the_model_does(declared: Any) -> None:
    run_state_machine_as_test(QueueMachine, settings=PROFILE)  # type: ignore[no-untyped-call]


class Late(Model):
    """A model in which a lease that ends now is not yet expired."""

    def reap(self) -> dict[int, str]:
        self.now -= timedelta(milliseconds=1)
        try:
            return super().reap()
        finally:
            self.now += timedelta(milliseconds=1)


class Free(Model):
    """A model in which a failure costs no attempt."""

    def settle(self, *args: Any, **options: Any) -> str | None:
        return super().settle(*args, **{**options, "refund": True})


class Unfair(Model):
    """A model that forgets whose turn it is."""

    def claim(self, worker: str, *args: Any, **options: Any) -> list[int]:
        self._cursors.clear()
        return super().claim(worker, *args, **options)


@pytest.mark.django_db
@pytest.mark.row("reliability", "2")
@pytest.mark.parametrize("wrong", [Late, Free, Unfair])
def test_a_queue_that_differs_from_the_model_is_found(
    wrong: type[Model], declared: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "Model", wrong)
    quick = settings(PROFILE, phases=[Phase.generate])
    with pytest.raises(AssertionError):
        run_state_machine_as_test(QueueMachine, settings=quick)  # type: ignore[no-untyped-call]
