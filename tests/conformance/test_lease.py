"""Lease and fence: who holds a job, for how long, and that nobody else writes its end (C60-C75)."""

from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import cycle
from threading import Event
from typing import Any

import pytest
from django.db import connection, transaction

from gnl_django import JobContext, cancel_job, enqueue
from gnl_django.core import clock, failpoints, leases
from gnl_django.core.db import now
from gnl_django.core.heartbeat import Verdict
from gnl_django.core.leases import Lease
from gnl_django.queue import outcomes
from gnl_django.queue.models import Attempt, Job
from gnl_django.queue.options import kinds as registry
from gnl_django.queue.store.base import ClaimedRow, Outcome
from tests.conformance import support_claim as s
from tests.conformance.conftest import Declare
from tests.support import vendor, wait_until

Failpoint = Callable[[str, Callable[[], None]], None]

OVERDUE = s.LONG + 1  # seconds after which a claim of these tests has run out


@pytest.fixture(autouse=True)
def _kind(declare: Declare) -> None:
    declare(s.KIND)


def only(job_id: int) -> Job:
    return Job.objects.get(id=job_id)


def lost_rows(job_id: int) -> list[tuple[int, str]]:
    """Return number and outcome of the job's Attempt rows in order."""
    return list(Attempt.objects.filter(job=job_id).order_by("id").values_list("number", "outcome"))


class Beats:
    """A heartbeat's renewals, counted; each may be made to fail before it is sent."""

    def __init__(
        self, failpoint: Failpoint, pattern: str = ".", *, then: Callable[[], None] | None = None
    ) -> None:
        self._pattern = cycle(pattern)
        self._then = then
        self.sent = self.good = 0
        failpoint("renew.begin", self._begin)
        failpoint("renew.committed", self._committed)

    def _begin(self) -> None:
        self.sent += 1
        if next(self._pattern) == "x":
            raise RuntimeError("this renewal fails")

    def _committed(self) -> None:
        self.good += 1
        if self._then is not None:
            self._then()


# renewal


@pytest.mark.row("queue", "C60")
@pytest.mark.django_db(transaction=True)
def test_a_handler_of_three_ttl_runs_once_while_others_look_for_work(
    declare: Declare, failpoint: Failpoint, quick_beats: None
) -> None:
    starts, looks = [], Event()

    def work(payload: Any, ctx: JobContext) -> str:
        starts.append(ctx.attempt)
        # Nine renewals, one each third of the ttl, are three ttl.
        wait_until(lambda: beats.good >= 9 or ctx.signal.revoked, describe=lambda: vars(beats))
        assert looks.wait(s.DEADLINE)
        return "done"

    declare(s.KIND, work)
    job = enqueue(s.KIND)
    with (
        clock.override(now("default")) as moved,  # goes on by a third of the ttl a renewal
        s.employed(ttl=30) as holder,
        s.employed(ttl=30) as other,
    ):
        beats = Beats(failpoint, then=lambda: moved.advance(timedelta(seconds=10)))
        holder.start()
        wait_until(lambda: starts)
        for good in (1, 3, 5, 8):
            wait_until(lambda good=good: beats.good >= good, describe=lambda: vars(beats))
            assert other.run_once() == 0
        looks.set()
        wait_until(lambda: only(job).state == "succeeded", describe=lambda: vars(only(job)))
        wait_until(lambda: holder.metrics().completed == 1, describe=holder.metrics)
        assert holder.metrics().lost == 0
        assert other.metrics().reaped == 0
    assert starts == [1]
    assert (only(job).result, only(job).attempt, lost_rows(job)) == ("done", 1, [])


@pytest.mark.row("queue", "C61", "C62")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("pattern", "enough"), [("x........", 3), ("xx.", 2)], ids=["first", "two of three"]
)
def test_one_or_two_renewals_that_fail_revoke_nothing(
    declare: Declare, failpoint: Failpoint, quick_beats: None, pattern: str, enough: int
) -> None:
    beats, seen = Beats(failpoint, pattern), []

    def work(payload: Any, ctx: JobContext) -> None:
        wait_until(lambda: beats.good >= enough or ctx.signal.revoked)
        seen.append((ctx.attempt, ctx.signal.why))

    declare(s.KIND, work)
    job = enqueue(s.KIND)
    with s.employed() as worker:
        assert worker.run_once() == 1
        assert worker.metrics().completed == 1
    assert seen == [(1, None)]
    assert (only(job).state, lost_rows(job)) == ("succeeded", [])


KILL = {
    "postgresql": ("SELECT pg_backend_pid()", "SELECT pg_terminate_backend({})"),
    "mysql": ("SELECT CONNECTION_ID()", "KILL {}"),
}


def lose_this_connection() -> None:
    """Let the server end this thread's session; on SQLite close it below Django's feet."""
    connection.ensure_connection()
    if vendor() == "sqlite":
        raw: Any = connection.connection
        raw.close()
        return
    ask, kill = KILL[vendor()]
    with connection.cursor() as cursor:
        cursor.execute(ask)
        (session,) = cursor.fetchone()
    with s.threads() as go:
        go(lambda: connection.cursor().execute(kill.format(session))).result(s.DEADLINE)


@pytest.mark.row("queue", "C78")
@pytest.mark.django_db(transaction=True)
def test_a_heartbeat_whose_connection_is_killed_connects_again_and_revokes_nothing(
    declare: Declare, failpoint: Failpoint, quick_beats: None, caplog: pytest.LogCaptureFixture
) -> None:
    beats = Beats(failpoint)
    kills, seen = iter([False, True]), []

    def begin() -> None:
        beats.sent += 1
        if next(kills, False):
            lose_this_connection()

    def work(payload: Any, ctx: JobContext) -> None:
        wait_until(lambda: beats.good >= 3 or ctx.signal.revoked, describe=lambda: vars(beats))
        seen.append((ctx.attempt, ctx.signal.why))

    declare(s.KIND, work)
    failpoint("renew.begin", begin)
    job = enqueue(s.KIND)
    with s.employed() as worker:
        assert worker.run_once() == 1
        assert (worker.metrics().completed, worker.metrics().lost) == (1, 0)
    assert seen == [(1, None)]
    assert beats.sent > beats.good
    assert "Renewal of 1 leases failed" in caplog.text
    assert (only(job).state, lost_rows(job)) == ("succeeded", [])


@pytest.mark.row("queue", "C63")
@pytest.mark.django_db(transaction=True)
def test_three_failed_renewals_lose_the_lease_before_it_expires(
    declare: Declare, failpoint: Failpoint, quick_beats: None
) -> None:
    Beats(failpoint, "x")
    seen: list[Any] = []

    def work(payload: Any, ctx: JobContext) -> str:
        assert ctx.signal.wait(s.DEADLINE)
        seen.extend([ctx.signal.why, now("default"), only(ctx.job_id).lease_expires_at])
        return "too late"

    declare(s.KIND, work)
    job = enqueue(s.KIND)
    errors: list[Any] = []
    with s.employed(on_error=lambda *args: errors.append(args)) as worker:
        assert worker.run_once() == 1
        assert (worker.metrics().lost, worker.metrics().completed) == (1, 0)
    why, told_at, expiry = seen
    assert why == "lease-lost"
    assert told_at < expiry
    assert errors == []
    stored = only(job)
    assert (stored.state, stored.attempt, stored.result) == ("running", 1, None)
    assert lost_rows(job) == []


@pytest.mark.row("queue", "C64", "C67")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("ending", ["success", "failure"])
def test_a_handler_whose_token_was_overwritten_leaves_no_outcome(
    declare: Declare, ending: str, caplog: pytest.LogCaptureFixture
) -> None:
    def work(payload: Any, ctx: JobContext) -> str:
        Job.objects.filter(id=ctx.job_id).update(claim_token=leases.new_token())
        if ending == "failure":
            raise ValueError("nobody will read this")
        return "nobody will read this"

    declare(s.KIND, work)
    job = enqueue(s.KIND)
    errors: list[Any] = []
    caplog.set_level("INFO", "gnl_django")
    with s.employed(on_error=lambda *args: errors.append(args)) as worker:
        assert worker.run_once() == 1
        metrics = worker.metrics()
    assert (metrics.lost, metrics.completed, metrics.failed, metrics.retried) == (1, 0, 0, 0)
    stored = only(job)
    assert (stored.state, stored.result, stored.error, stored.note) == ("running", None, "", "")
    assert lost_rows(job) == []
    assert errors == []
    assert len([record for record in caplog.records if "StaleClaim" in record.message]) == 1


@pytest.mark.row("queue", "C65")
@pytest.mark.django_db(transaction=True)
def test_without_renewals_a_job_runs_again_and_has_one_result(
    declare: Declare, failpoint: Failpoint
) -> None:
    Beats(failpoint, "x")
    starts: list[int] = []

    def work(payload: Any, ctx: JobContext) -> int:
        starts.append(ctx.attempt)
        if ctx.attempt == 1:
            wait_until(lambda: only(job).state == "succeeded", describe=lambda: vars(only(job)))
        return ctx.attempt

    declare(s.KIND, work)
    job = enqueue(s.KIND)
    with s.employed(ttl=s.LONG, concurrency=1) as one, s.employed(ttl=s.LONG) as two:
        one.start()
        wait_until(lambda: starts)
        with s.later(OVERDUE):
            assert two.run_once() == 1
            wait_until(lambda: one.metrics().lost == 1, describe=one.metrics)
    assert starts == [1, 2]
    assert only(job).result == 2
    assert lost_rows(job) == [(1, "lease_lost")]


# the fence


@pytest.mark.row("queue", "C66")
@pytest.mark.django_db
def test_an_old_token_changes_nothing_though_the_same_worker_holds_the_job_again() -> None:
    job = enqueue(s.KIND)
    store = s.store()
    old_row, old = s.claim_one(worker="same/name")
    with s.later(OVERDUE):
        assert [reaped.state for reaped in store.reap()] == ["ready"]
        new_row, new = s.claim_one(worker="same/name")
        assert (new_row.id, old_row.id, new != old) == (job, job, True)
        before = Job.objects.filter(id=job).values().get()
        stale = Lease(job, old, good_at=0.0)
        canceled = Outcome(job, old, "canceled", refund=True, recorded="canceled")
        for outcome in (
            s.succeed(old_row, old),
            s.fail(old_row, old),
            s.fail(old_row, old, state="dead"),
            outcomes.released(stale),
            canceled,
        ):
            (settled,) = store.settle([outcome])
            assert (settled.state, settled.locked) == (None, False)
        assert store.renew([stale], 60.0) == [(stale, Verdict.GONE)]
    assert Job.objects.filter(id=job).values().get() == before
    assert lost_rows(job) == [(1, "lease_lost")]
    (settled,) = store.settle([s.succeed(new_row, new)])
    assert settled.state == "succeeded"


@pytest.mark.row("queue", "C67")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("ending", ["success", "failure"])
def test_a_stale_end_beside_the_second_run_leaves_no_trace(declare: Declare, ending: str) -> None:
    inside, go_on, errors = Event(), Event(), []

    def work(payload: Any, ctx: JobContext) -> str:
        if ctx.attempt == 1:
            inside.set()
            assert go_on.wait(s.DEADLINE)
            if ending == "failure":
                raise ValueError("stale")
        return f"attempt {ctx.attempt}"

    declare(s.KIND, work)
    job = enqueue(s.KIND)
    # Within its poll the slow one does not reap a second time, and it has no slot left.
    with (
        s.employed(
            concurrency=1, poll=60, max_poll=60, on_error=lambda *args: errors.append(args)
        ) as slow,
        s.employed() as second,
    ):
        slow.start()
        assert inside.wait(s.DEADLINE)
        Job.objects.filter(id=job).update(lease_expires_at=now("default"))
        assert second.run_once() == 1
        go_on.set()
        wait_until(lambda: slow.metrics().lost == 1, describe=slow.metrics)
        assert second.metrics().reaped == 1
    assert (only(job).state, only(job).result, only(job).attempt) == ("succeeded", "attempt 2", 2)
    assert lost_rows(job) == [(1, "lease_lost")]
    assert errors == []


#: What races with a reap: the fail point inside its transaction, and how to do it.
RACERS = ("complete", "retry", "cancel", "renew")
ORDERS = ("reap first", "reap last", "reap inside", "reap around")


def act(racer: str, row: ClaimedRow, token: str) -> None:
    """Do to a claimed job what `racer` says."""
    if racer == "cancel":
        cancel_job(row.id, "operator")
    elif racer == "renew":
        s.store().renew([Lease(row.id, token, good_at=0.0)], 10 * s.LONG)
    else:
        make = {"complete": s.succeed, "retry": s.fail}[racer]
        s.store().settle([make(row, token)])


def open_act(racer: str, row: ClaimedRow, token: str, gate: s.Gate, failpoint: Failpoint) -> None:
    """As `act`; its transaction stays open at `gate`."""
    if racer == "cancel":
        with transaction.atomic():
            act(racer, row, token)
            gate()
    else:
        failpoint(f"{racer}.updated", gate)
        act(racer, row, token)


#: (state, outcomes of the Attempt rows) after the act came first, and after the reap came first.
ENDS = {
    "complete": {("succeeded", ()), ("ready", ("lease_lost",))},
    "retry": {("scheduled", ("failed",)), ("ready", ("lease_lost",))},
    "cancel": {("canceled", ("lease_lost",))},
    "renew": {("running", ()), ("ready", ("lease_lost",))},
}


@pytest.mark.row("queue", "C68")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("racer", RACERS)
def test_a_reap_that_races_leaves_one_end_and_keeps_the_fence(
    failpoint: Failpoint, racer: str, order: str
) -> None:
    job = enqueue(s.KIND)
    row, token = s.claim_one()
    gate = s.Gate(first_only=True)
    with s.later(OVERDUE), s.threads() as go:
        if order == "reap first":
            s.store().reap()
            act(racer, row, token)
        elif order == "reap last":
            act(racer, row, token)
            s.store().reap()
        elif order == "reap inside":  # the reap's transaction is open while the other comes
            failpoint("reap.updated", gate)
            first = go(lambda: s.store().reap())
            gate.wait_reached()
            second = go(act, racer, row, token)
            # Only an operator's call may wait for the row; one writer makes everybody wait.
            if racer != "cancel" and vendor() != "sqlite":
                second.result(s.DEADLINE)
            gate.open()
            first.result(s.DEADLINE)
            second.result(s.DEADLINE)
        else:
            first = go(open_act, racer, row, token, gate, failpoint)
            gate.wait_reached()
            second = go(lambda: s.store().reap())
            if vendor() != "sqlite":
                assert second.result(s.DEADLINE) == []  # the row is skipped, not waited for
            gate.open()
            first.result(s.DEADLINE)
            second.result(s.DEADLINE)
            failpoints.hook(f"{racer}.updated" if racer != "cancel" else "reap.updated", None)
            s.store().reap()
        stored = only(job)
        ended = (stored.state, tuple(outcome for _, outcome in lost_rows(job)))
        assert ended in ENDS[racer]
        first_came = {"reap first": "lease_lost", "reap last": None}.get(order)
        if first_came and racer != "cancel":
            assert ended == ("ready", ("lease_lost",))
        # The old token writes nothing any more, unless the renewal was in time.
        (again,) = s.store().settle([s.fail(row, token, state="dead")])
        assert (again.state == "dead") == (ended == ("running", ()))
    assert not again.locked


@pytest.mark.row("queue", "C69")
@pytest.mark.django_db
def test_a_lease_is_reaped_at_its_last_instant_and_not_before() -> None:
    start = datetime.fromisoformat("2031-05-06T07:08:09.123000+00:00")
    with clock.override(start) as moved:
        job = enqueue(s.KIND)
        s.claim_one(ttl=30.0)
        assert only(job).lease_expires_at == start + timedelta(seconds=30)
        moved.set(start + timedelta(seconds=30, microseconds=-1))
        assert s.store().reap() == []
        assert s.states() == {job: "running"}
        moved.set(start + timedelta(seconds=30))
        assert [reaped.id for reaped in s.store().reap()] == [job]
        assert s.states() == {job: "ready"}
        finished = Attempt.objects.get(job=job).finished_at
    assert finished == start + timedelta(seconds=30)


@pytest.mark.row("queue", "C70")
@pytest.mark.django_db
def test_one_expired_lease_behind_250_others_is_found_in_one_pass() -> None:
    s.fill(250, "running", ahead="3600 + n")
    job = enqueue(s.KIND)
    s.claim_one(ttl=0.0)
    assert [reaped.id for reaped in s.store().reap()] == [job]


@pytest.mark.row("queue", "C70")
@pytest.mark.django_db
def test_250_expired_leases_are_reaped_in_one_pass() -> None:
    s.fill(250, "running", ahead="-n - 1")
    assert len({reaped.id for reaped in s.store().reap()}) == 250
    assert set(s.states().values()) == {"ready"}
    assert Attempt.objects.filter(outcome="lease_lost").count() == 250


# crashes


def crash() -> str:
    """Claim the next job, vanish, and let another worker reap it; return the job's state."""
    row, _ = s.claim_one()
    with s.later(OVERDUE):
        (reaped,) = s.store().reap()
    assert reaped.id == row.id
    return reaped.state


@pytest.mark.row("queue", "C71")
@pytest.mark.django_db
def test_a_job_of_one_attempt_is_dead_after_a_crash_and_not_claimed_again() -> None:
    job = enqueue(s.KIND, max_attempts=1)
    assert crash() == "dead"
    stored = only(job)
    assert stored.error_class == "gnl_django.errors.LeaseExpired"
    assert stored.error.startswith("LeaseExpired: ")
    assert stored.error_key
    assert stored.finished_at is not None
    assert (stored.attempt, lost_rows(job)) == (1, [(1, "lease_lost")])
    assert s.store().claim(s.request()).rows == []


@pytest.mark.row("queue", "C72")
@pytest.mark.django_db
def test_three_crashes_of_three_attempts_make_ready_ready_dead() -> None:
    job = enqueue(s.KIND, max_attempts=3)
    assert [crash() for _ in range(3)] == ["ready", "ready", "dead"]
    assert lost_rows(job) == [(1, "lease_lost"), (2, "lease_lost"), (3, "lease_lost")]
    for attempt in Attempt.objects.filter(job=job):
        assert attempt.error_class == "gnl_django.errors.LeaseExpired"
        assert attempt.worker == "test"
        assert attempt.started_at < attempt.finished_at
        assert attempt.revival == 0


@pytest.mark.row("queue", "C82")
@pytest.mark.django_db
def test_a_reap_costs_the_attempt_also_when_a_cancel_was_asked_for() -> None:
    job = enqueue(s.KIND, max_attempts=1)
    row, _ = s.claim_one()
    assert cancel_job(row.id, "no longer wanted")
    with s.later(OVERDUE):
        assert [reaped.state for reaped in s.store().reap()] == ["canceled"]
    assert (only(job).attempt, only(job).error_class) == (1, "")
    assert lost_rows(job) == [(1, "lease_lost")]


@pytest.mark.row("queue", "C74")
@pytest.mark.django_db(transaction=True)
def test_a_job_without_a_handler_is_reaped_all_the_same(declare: Declare) -> None:
    declare("lease.gone")
    job = enqueue("lease.gone", queue="elsewhere", max_attempts=2)
    s.claim_one(kinds=("lease.gone",), queue="elsewhere", ttl=0.0)
    registry.forget("lease.gone")
    with s.employed(kinds=[]) as worker:
        assert worker.run_once() == 0
        assert worker.metrics().reaped == 1
    assert (s.states(), lost_rows(job)) == ({job: "ready"}, [(1, "lease_lost")])


@pytest.mark.row("queue", "C75")
@pytest.mark.django_db(transaction=True)
def test_a_draining_worker_reaps_and_promotes() -> None:
    crashed = enqueue(s.KIND)
    s.claim_one(ttl=0.0)
    due = enqueue(s.KIND, delay=60)
    Job.objects.filter(id=due).update(run_at=now("default"))
    with s.employed() as worker:
        worker.drain()
        assert worker.run_once() == 0
        assert worker.metrics().reaped == 1
    assert s.states() == {crashed: "ready", due: "ready"}


@pytest.mark.row("queue", "C70")
@pytest.mark.django_db
def test_a_row_edited_by_hand_does_not_stop_the_reaping_of_others() -> None:
    s.fill(2, "running", ahead="-n - 1")
    damaged, whole = Job.objects.order_by("pk").values_list("pk", flat=True)
    Job.objects.filter(pk=damaged).update(worker=None, started_at=None)
    assert {reaped.id for reaped in s.store().reap()} == {damaged, whole}
    assert Attempt.objects.get(job=damaged).worker == ""
