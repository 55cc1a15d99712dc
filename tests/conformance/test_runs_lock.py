"""Lock, fence and owner: who may write into a run, and that nobody else does (D37-D52).

A job's claim is the right to its own run; a run that stands alone has a lock of its own, and inside
a handler it needs both.
"""

import asyncio
import threading
from contextlib import suppress
from datetime import timedelta
from itertools import chain, repeat
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction

from gnl_django import (
    ExecutionRevoked,
    JobContext,
    RunBusy,
    RunContext,
    StaleClaim,
    cancel_job,
    enqueue,
    get_run,
    run_durable,
)
from gnl_django.core import clock
from gnl_django.core.db import now
from gnl_django.core.heartbeat import Heartbeat, Verdict
from gnl_django.core.leases import Lease
from gnl_django.models import Job, Run, Step
from gnl_django.runs import standing
from gnl_django.runs.journal import acts, journal_for
from tests.conformance import support_claim as s
from tests.conformance.conftest import NOON, Aside, Declare, FailPoint, MakeWorker
from tests.conformance.helpers import DEADLINE, MOMENT, columns_of, job_of, state_of, statements
from tests.conformance.support_runs import (
    RUN,
    Body,
    journal_statements,
    keys_of,
    make_run,
    run_columns,
    run_row,
    steps_of,
)
from tests.support import vendor, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

TICK = timedelta(microseconds=1)
LOCK = timedelta(seconds=standing.LOCK_TTL)


def heart() -> Heartbeat:
    """Return the one that renews the locks of this process's runs."""
    return standing._hearts._beating["default"][0]


# inside the run's own handler


@pytest.mark.row("runs", "D37")
def test_a_handler_enters_its_own_run_as_often_as_it_likes(
    declare: Declare, make_worker: MakeWorker
) -> None:
    bodies = [Body(n) for n in range(4)]

    def inner(run: RunContext, *args: Any, **kwargs: Any) -> Any:
        assert (args, kwargs) == ((1,), {"two": 2})
        return run.step("s", bodies[1]), run.attempt, run.run_id

    def handle(payload: Any, ctx: JobContext) -> Any:
        found = [ctx.step("s", bodies[0])]
        found += run_durable(ctx.run_id, inner, 1, two=2)
        found += ctx.run(inner, 1, two=2)
        return [*found, ctx.step("s", bodies[3])]

    job_id = declare("t.own", handle).enqueue()
    make_worker().run_once()
    run_id = f"job:{job_id}"
    assert job_of(job_id).result == [0, 1, 1, run_id, 1, 1, run_id, 3]
    assert [body.count for body in bodies] == [1, 2, 0, 1]
    assert keys_of(run_id) == ["s", "s#2", "s#3", "s#4"]
    assert run_row(run_id).entries == 1


@pytest.mark.row("runs", "D37")
@pytest.mark.parametrize("run_id", ["job:1", "sched:7:1", "wf:1", "evt:c:1", "job:"])
def test_nobody_else_enters_a_handlers_run(run_id: str) -> None:
    body = Body()
    with pytest.raises(ValueError, match=r"ctx\.run_id"):
        run_durable(run_id, body)
    assert (body.count, Run.objects.count()) == (0, 0)


@pytest.mark.row("runs", "D37")
def test_a_handler_does_not_enter_another_jobs_run(
    declare: Declare, make_worker: MakeWorker
) -> None:
    def handle(payload: Any, ctx: JobContext) -> None:
        with pytest.raises(ValueError, match="belongs to its own handler"):
            run_durable(f"job:{ctx.job_id + 1}", Body())
        with pytest.raises(TypeError):
            ctx.run(run_id="other", model=Body("x"), tools=[], prompt="")

    job_id = declare("t.other", handle).enqueue()
    make_worker().run_once()
    assert state_of(job_id) == "succeeded", job_of(job_id).error
    assert Run.objects.count() == 0


@pytest.mark.row("runs", "D38")
def test_the_jobs_claim_and_the_runs_lock_are_two_rows_and_neither_frees_the_other(
    declare: Declare, make_worker: MakeWorker
) -> None:
    def handle(payload: Any, ctx: JobContext) -> None:
        claim = (job_of(ctx.job_id).claim_token, job_of(ctx.job_id).lease_expires_at)
        ctx.step("own", Body())
        assert run_row(ctx.run_id).lock_token is None  # the claim is its right

        def work(run: RunContext) -> str:
            run.step("in it", Body())
            row = run_row(RUN)
            assert row.lock_holder == f"job:{ctx.job_id}"
            assert row.lock_token not in {None, claim[0]}
            return "done"

        assert run_durable(RUN, work) == "done"
        row = run_row(RUN)
        assert (row.state, row.lock_token, row.lock_holder) == ("completed", None, None)
        assert (job_of(ctx.job_id).claim_token, job_of(ctx.job_id).lease_expires_at) == claim

        def slow(run: RunContext) -> None:
            token = run_row("r2").lock_token
            Job.objects.filter(id=ctx.job_id).update(state="ready", claim_token=None,
                lease_expires_at=None)  # fmt: skip
            assert run_row("r2").lock_token == token is not None
            run.step("without the claim", Body())

        run_durable("r2", slow)

    job_id = declare("t.rows", handle).enqueue()
    make_worker().run_once()
    assert state_of(job_id) == "ready"  # taken from it in the middle
    row = run_row("r2")
    assert (row.state, row.lock_token, keys_of("r2")) == ("running", None, [])


# the lock of a run that stands alone


@pytest.mark.row("runs", "D39")
def test_the_second_executor_is_told_when_to_come_back_and_writes_nothing(aside: Aside) -> None:
    gate = s.Gate()
    first = aside(lambda: run_durable(RUN, lambda run: run.step("s", gate)))
    gate.wait_reached()
    before, body = run_columns(), Body()
    with pytest.raises(RunBusy) as caught:
        run_durable(RUN, body, input={"other": 1})
    assert caught.value.run_id == RUN
    assert 0 < caught.value.retry_in <= standing.LOCK_TTL
    assert (body.count, run_columns()) == (0, before)
    gate.open()
    first.result()
    assert run_row().state == "completed"
    assert run_row().lock_token is None


@pytest.mark.row("runs", "D39")
def test_of_many_that_enter_at_once_one_gets_in(aside: Aside) -> None:
    gate, ready = s.Gate(), threading.Barrier(8)

    def enter() -> str:
        ready.wait(DEADLINE)
        try:
            run_durable(RUN, lambda run: run.step("s", gate))
        except RunBusy:
            return "busy"
        return "done"

    calls = [aside(enter) for _ in range(8)]
    gate.wait_reached()
    wait_until(lambda: sum(not call.is_alive() for call in calls) == 7, 30)
    gate.open()
    assert sorted(call.result(30) for call in calls) == ["busy"] * 7 + ["done"]
    assert (run_row().entries, keys_of()) == (1, ["s"])


def locked(at: Any, *, holder: str = "proc:elsewhere/1/ab", state: str = "running") -> Run:
    return make_run(state=state, lock_token="f" * 32, lock_holder=holder, lock_expires_at=at)


@pytest.mark.row("runs", "D40")
def test_a_lock_is_free_at_its_very_end(frozen: clock.Override) -> None:
    locked(NOON)
    frozen.set(NOON - TICK)
    before = run_columns()
    with pytest.raises(RunBusy) as caught:
        run_durable(RUN, Body())
    assert caught.value.retry_in == pytest.approx(1e-6)
    assert run_columns() == before
    frozen.set(NOON)
    assert run_durable(RUN, lambda run: run_row().lock_expires_at) is not None
    assert (run_row().entries, run_row().state) == (2, "completed")


@pytest.mark.row("runs", "D40")
def test_an_entry_locks_for_half_a_minute_by_the_databases_clock(frozen: clock.Override) -> None:
    seen: list[Any] = []

    def work(run: RunContext) -> None:
        row = run_row()
        seen.append((row.lock_expires_at - NOON, row.lock_holder.startswith("proc:"), row.state))

    run_durable(RUN, work)
    assert seen == [(LOCK, True, "running")]


@pytest.mark.row("runs", "D41")
def test_a_jobs_next_attempt_takes_the_lock_of_its_dead_one_at_once(
    declare: Declare, make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch, aside: Aside
) -> None:
    monkeypatch.setattr(standing, "LOCK_TTL", 9 * s.LONG)
    gate, told = s.Gate(), []

    def work(run: RunContext, attempt: int) -> str:
        run.step("first", Body("first"))
        if attempt == 1:
            gate()
        try:
            return str(run.step("second", Body(f"by {attempt}")))
        except (StaleClaim, ExecutionRevoked) as error:
            told.append((attempt, type(error)))
            raise

    def handle(payload: Any, ctx: JobContext) -> Any:
        return run_durable(RUN, work, ctx.attempt)

    job_id = declare("t.dead", handle).enqueue()
    dead = make_worker(ttl=s.LONG)
    attempt = aside(dead.run_once)
    gate.wait_reached()
    holder = run_row().lock_holder
    with s.later(s.LONG + 1):
        assert run_row().lock_expires_at > now("default")
        assert make_worker(ttl=s.LONG).run_once() == 1
        assert (state_of(job_id), job_of(job_id).result) == ("succeeded", "by 2")
    assert holder == f"job:{job_id}"
    gate.open()
    attempt.result()
    assert told == [(1, StaleClaim)]
    assert steps_of() == [("first", "done", "first"), ("second", "done", "by 2")]
    assert (run_row().state, run_row().result, run_row().entries) == ("completed", "by 2", 2)


@pytest.mark.row("runs", "D42")
def test_a_run_held_by_a_stranger_defers_the_job(
    declare: Declare, make_worker: MakeWorker, frozen: clock.Override
) -> None:
    def handle(payload: Any, ctx: JobContext) -> Any:
        return run_durable(RUN, lambda run: "done")

    job_id = declare("t.busy", handle, max_attempts=1).enqueue()
    locked(NOON + timedelta(seconds=17), holder="job:999")
    worker = make_worker()
    assert worker.run_once() == 1
    job = job_of(job_id)
    assert (job.state, job.attempt, job.deferrals) == ("scheduled", 0, 1)
    assert job.run_at == NOON + timedelta(seconds=17)
    frozen.advance(timedelta(seconds=17))
    assert worker.run_once() == 1
    assert (state_of(job_id), job_of(job_id).attempt) == ("succeeded", 1)


@pytest.mark.row("runs", "D42")
def test_a_handler_that_enters_a_run_twice_at_a_time_does_not_take_its_own_lock_over(
    declare: Declare, make_worker: MakeWorker
) -> None:
    told: list[str] = []

    def outer(run: RunContext) -> str:
        try:
            run_durable(RUN, lambda run: "inner")
        except RunBusy as busy:
            told.append(busy.run_id)
        return str(run.step("s", lambda: "outer"))

    job_id = declare("t.twice", lambda payload, ctx: run_durable(RUN, outer)).enqueue()
    make_worker().run_once()
    assert (told, state_of(job_id), job_of(job_id).result) == ([RUN], "succeeded", "outer")


@pytest.mark.row("runs", "D60")
def test_a_run_that_stands_alone_is_stopped_by_its_handlers_cancel_and_can_go_on(
    declare: Declare, make_worker: MakeWorker
) -> None:
    def stopped(run: RunContext, ctx: JobContext) -> None:
        cancel_job(ctx.job_id, "enough")
        run.step("first", lambda: 1)
        run.step("never", lambda: 2)

    job_id = declare("t.stop", lambda payload, ctx: run_durable(RUN, stopped, ctx)).enqueue()
    make_worker().run_once()
    run = run_row()
    assert (state_of(job_id), run.state, run.error, run.lock_token) == (
        *("canceled", "running", "", None),
    )
    assert run_durable(RUN, lambda run: run.step("first", lambda: "again")) == 1


@pytest.mark.row("runs", "D44", "D88")
@pytest.mark.parametrize("how", [{}, {"side_effect": True}, {"atomic": True}], ids=str)
def test_a_job_that_has_lost_its_claim_writes_nothing_though_the_lock_is_still_its(
    declare: Declare, make_worker: MakeWorker, how: dict[str, bool]
) -> None:
    seen: list[Any] = []

    def work(run: RunContext, ctx: JobContext) -> None:
        Job.objects.filter(id=ctx.job_id).update(claim_token="f" * 32)
        row = run_columns()
        try:
            run.step("s", Body(), **how)
        except StaleClaim as error:
            seen.append((str(error), run.signal.why, run_columns() == row, row["lock_token"]))
            raise

    def handle(payload: Any, ctx: JobContext) -> None:
        ctx.step("own", Body())
        with pytest.raises(StaleClaim):
            run_durable(RUN, work, ctx)
        with pytest.raises(StaleClaim):
            ctx.step("own too", Body(), **how)
        seen.append(ctx.signal.why)

    job_id = declare("t.token", handle).enqueue()
    make_worker().run_once()
    (text, why, same, token), own = seen
    assert "somebody else" in text
    assert (why, same, own) == ("lease-lost", True, "lease-lost")
    assert token is not None
    assert (keys_of(), keys_of(f"job:{job_id}")) == ([], ["own"])
    assert columns_of(job_id)["claim_token"] is None or state_of(job_id) == "running"
    assert run_row().state == "running"


@pytest.mark.row("runs", "D44", "D88")
@pytest.mark.parametrize(
    "change",
    [
        {"lock_token": "f" * 32},
        {"state": "completed", "finished_at": NOON},
        {"lock_token": None, "lock_holder": None, "lock_expires_at": None},
    ],
    ids=["another token", "ended", "given back"],
)
def test_a_run_whose_lock_is_gone_writes_nothing(change: dict[str, Any]) -> None:
    body = Body()

    def work(run: RunContext) -> None:
        Run.objects.update(**change)
        before = run_columns()
        with pytest.raises(StaleClaim):
            run.step("s", body)
        with pytest.raises(ExecutionRevoked, match="lease-lost"):
            run.step("t", body)
        assert run_columns() == before
        assert run.signal.why == "lease-lost"

    with pytest.raises(StaleClaim, match="before its end was written"):
        run_durable(RUN, work)
    assert (body.count, steps_of()) == (1, [])
    assert run_row().result is None


# renewal


def renewals(monkeypatch: pytest.MonkeyPatch, pattern: str) -> list[str]:
    """Let some renewals fail: `x` for those that do; return what happened."""
    original, plan, seen = acts.renew_locks, chain(pattern, repeat(".")), []

    def renew(*args: Any) -> Any:
        seen.append(next(plan))
        if seen[-1] == "x":
            raise RuntimeError("this renewal fails")
        return original(*args)

    monkeypatch.setattr(acts, "renew_locks", renew)
    return seen


@pytest.mark.row("runs", "D45")
@pytest.mark.parametrize("pattern", ["x..", "xx.", "x.xx.xx."])
def test_a_renewal_that_fails_once_or_twice_costs_nothing(
    monkeypatch: pytest.MonkeyPatch, frozen: clock.Override, pattern: str
) -> None:
    seen = renewals(monkeypatch, pattern)

    def work(run: RunContext) -> str:
        for _ in pattern:
            frozen.advance(timedelta(seconds=10))
            heart().beat()
        assert not run.signal.revoked
        assert run_row().lock_expires_at == now("default") + LOCK
        return str(run.step("s", Body("goes on")))

    assert run_durable(RUN, work) == "goes on"
    assert "".join(seen) == pattern


@pytest.mark.row("runs", "D45")
def test_the_third_failure_in_a_row_loses_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    renewals(monkeypatch, "xxx")
    body, told = Body(), []

    def work(run: RunContext) -> None:
        run.signal.on_revoke(lambda: told.append(run.signal.why))
        for _ in range(3):
            assert told == []
            heart().beat()
        run.step("s", body)

    with pytest.raises(ExecutionRevoked, match="lease-lost"):
        run_durable(RUN, work)
    assert (told, body.count) == (["lease-lost"], 0)
    row = run_row()
    assert (row.state, row.lock_token, row.error) == ("running", None, "")


@pytest.mark.row("runs", "D45")
def test_the_loss_of_a_runs_lock_does_not_stop_the_handler_around_it(
    declare: Declare, make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewals(monkeypatch, "xxx")

    def work(run: RunContext) -> None:
        for _ in range(3):
            heart().beat()
        run.step("s", Body())

    def handle(payload: Any, ctx: JobContext) -> Any:
        with pytest.raises(ExecutionRevoked):
            run_durable(RUN, work)
        return ctx.signal.why, ctx.step("goes on", Body(1))

    job_id = declare("t.inner", handle).enqueue()
    make_worker().run_once()
    assert job_of(job_id).result == [None, 1]


@pytest.mark.row("runs", "D46")
def test_a_renewal_never_revives_a_lock_that_was_given_back(failpoint: FailPoint) -> None:
    seen: list[Any] = []
    failpoint("run.final", lambda: seen.append(dict(standing._hearts._beating)))

    def work(run: RunContext) -> tuple[int, str]:
        return run_row().pk, run_row().lock_token

    pk, token = run_durable(RUN, work)
    assert seen == [{}]  # no renewal is under way when the lock is given back
    for state in ("completed", "running"):
        Run.objects.update(state=state, finished_at=NOON if state == "completed" else None)
        before = run_columns()
        lease = Lease(pk, token, good_at=0.0)
        found = acts.renew_locks(journal_for("default"), [lease], 30)
        assert found == [(lease, Verdict.GONE)]
        assert run_columns() == before


@pytest.mark.row("runs", "D46")
def test_the_heartbeat_ends_with_the_last_run_of_the_process(aside: Aside) -> None:
    both = threading.Barrier(12)

    def work(run: RunContext) -> None:
        both.wait(DEADLINE)
        run.step("s", Body())

    calls = [aside(lambda n=n: run_durable(f"r{n}", work)) for n in range(12)]
    for call in calls:
        call.result(30)
    assert standing._hearts._beating == {}
    names = "gnl-runs-renewal", "gnl-runs-clock"
    wait_until(lambda: not {thread.name for thread in threading.enumerate()}.intersection(names))


@pytest.mark.row("runs", "D46")
def test_one_heartbeat_serves_all_runs_however_they_begin(
    aside: Aside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads that start it at once must not start it twice."""
    both, together = threading.Barrier(2), []
    original = Heartbeat.start

    def start(self: Heartbeat) -> None:
        with suppress(threading.BrokenBarrierError):
            together.append(both.wait(MOMENT))
        original(self)

    monkeypatch.setattr(Heartbeat, "start", start)
    inside = threading.Barrier(3)

    def work(run: RunContext) -> None:
        inside.wait(DEADLINE)
        inside.wait(DEADLINE)

    calls = [aside(lambda n=n: run_durable(f"r{n}", work)) for n in range(2)]
    inside.wait(DEADLINE)
    mine = [thread for thread in threading.enumerate() if thread.name.startswith("gnl-runs")]
    inside.wait(DEADLINE)
    for call in calls:
        call.result()
    assert (together, len(mine)) == ([], 2)


@pytest.mark.row("runs", "D47")
@pytest.mark.usefixtures("quick_beats")
def test_steps_without_pause_do_not_keep_the_heartbeat_from_renewing(
    declare: Declare, make_worker: MakeWorker, failpoint: FailPoint
) -> None:
    """Fences share-lock the job's row; a renewal that meets one comes back soon."""
    good: list[int] = []
    failpoint("renew.committed", lambda: good.append(1))

    def handle(payload: Any, ctx: JobContext) -> str:
        steps = 0
        while len(good) < 4 or steps < 100:
            ctx.step("s", Body())
            steps += 1
        return "renewed"

    job_id = declare("t.many", handle).enqueue()
    worker = make_worker()
    worker.run_once()
    assert job_of(job_id).result == "renewed"
    assert (worker.metrics().lost, job_of(job_id).attempt) == (0, 1)


@pytest.mark.row("runs", "D47")
@pytest.mark.postgres("SQLite has no row locks")
@pytest.mark.mysql
def test_a_renewal_skips_a_row_that_a_fence_holds_and_loses_nothing(
    declare: Declare, aside: Aside
) -> None:
    declare(s.KIND)
    s.add([None])
    row, token = s.claim_one()
    share = "FOR SHARE" if vendor() == "postgresql" else "LOCK IN SHARE MODE"
    lease = Lease(row.id, token, good_at=0.0)
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT id FROM gnl_django_job WHERE id = %s {share}", [row.id])
            cursor.fetchall()
        found = aside(lambda: s.store().renew([lease], 30)).result()
    assert [verdict for _, verdict in found] == [Verdict.LOCKED]
    found = s.store().renew([lease], 30)
    assert [verdict for _, verdict in found] == [Verdict.RENEWED]


# run ids


@pytest.mark.row("runs", "D48")
def test_run_ids_are_compared_exactly() -> None:
    ids = ["a", "A", "ä", "a\u0308", "ß", "ss", "a b", "a  b", "%", "_", "😀", "1", "1.0"]
    for n, run_id in enumerate(ids):
        assert run_durable(run_id, lambda run, n=n: run.step("s", Body(n))) == n
    for n, run_id in enumerate(ids):
        assert run_durable(run_id, Body("never")) == n
        assert get_run(run_id).result == n  # type: ignore[union-attr]
    assert Run.objects.count() == len(ids)


@pytest.mark.row("runs", "D48")
@pytest.mark.parametrize(
    "run_id",
    ["", " a", "a ", "a" * 256, "a\n", "a\0", "\ud800", "\u00a0a", "a\u3000", "\x7f"],
    ids=ascii,
)
def test_a_run_id_that_nobody_can_type_is_refused(run_id: str) -> None:
    body = Body()
    with pytest.raises(ValueError, match="run id"):
        run_durable(run_id, body)
    assert (body.count, Run.objects.count()) == (0, 0)


@pytest.mark.row("runs", "D48")
@pytest.mark.parametrize("run_id", [None, 7, b"a", ["a"]], ids=repr)
def test_a_run_id_that_is_no_text_is_refused(run_id: Any) -> None:
    with pytest.raises(TypeError, match="run id must be text"):
        run_durable(run_id, Body())


@pytest.mark.row("runs", "D48")
@pytest.mark.parametrize("letter", ["a", "😀"])
def test_the_longest_run_id_works_with_the_longest_step(letter: str) -> None:
    run_id, name = letter * 255, letter * 200
    run_durable(run_id, lambda run: [run.step(name, Body(n), side_effect=True) for n in (1, 2)])
    assert keys_of(run_id) == [name, f"{name}#2"]
    assert run_row(run_id).state == "completed"


# entering lazily


@pytest.mark.row("runs", "D49")
def test_a_handler_without_steps_writes_and_asks_nothing_more(
    declare: Declare, make_worker: MakeWorker
) -> None:
    inside: list[str] = []

    def handle(payload: Any, ctx: JobContext) -> str:
        with statements() as seen:
            assert ctx.run_id == f"job:{ctx.job_id}"
        inside.extend(seen)
        return "done"

    job_id = declare("t.plain", handle).enqueue()
    worker = make_worker()
    with journal_statements() as seen:
        assert worker.run_once() == 1
    assert state_of(job_id) == "succeeded"
    assert inside == []
    # (The search for lost jobs lets their runs follow, in the same statement.)
    ours = [text for text in seen if "gnl_django_job" not in text]
    assert not [text for text in ours if "gnl_django_run" in text or "gnl_django_step" in text]
    assert (Run.objects.count(), Step.objects.count()) == (0, 0)


@pytest.mark.row("runs", "D49")
@pytest.mark.parametrize("use", ["claim", "frozen", "run"])
def test_every_other_use_enters_too(declare: Declare, make_worker: MakeWorker, use: str) -> None:
    def handle(payload: Any, ctx: JobContext) -> None:
        if use == "claim":
            ctx.claim("k")
        elif use == "frozen":
            ctx.frozen("k", Body(1))
        else:
            ctx.run(Body())

    job_id = declare("t.uses", handle).enqueue()
    make_worker().run_once()
    assert (run_row(f"job:{job_id}").state, run_row(f"job:{job_id}").entries) == ("completed", 1)


@pytest.mark.row("runs", "D50")
def test_a_run_belongs_to_its_jobs_organization_and_a_lone_one_to_its_first_writers(
    declare: Declare, make_worker: MakeWorker
) -> None:
    seen: list[Any] = []

    def handle(payload: Any, ctx: JobContext) -> None:
        ctx.run(lambda run: seen.append(run.org))
        run_durable(f"mine {ctx.org}", lambda run: seen.append(run.org))
        run_durable(f"theirs {ctx.org}", lambda run: seen.append(run.org), org="other")

    kind = declare("t.org", handle)
    job_ids = [kind.enqueue(org=org) for org in ("acme", None)]
    make_worker(concurrency=1).run_until_idle()
    assert [state_of(job_id) for job_id in job_ids] == ["succeeded"] * 2
    assert {run.run_id: run.org for run in Run.objects.all()} == {
        f"job:{job_ids[0]}": "acme",
        f"job:{job_ids[1]}": "",
        "mine acme": "acme",
        "mine None": "",
        "theirs acme": "other",
        "theirs None": "other",
    }
    assert sorted(map(str, seen)) == ["None", "None", "acme", "acme", "other", "other"]
    with pytest.raises(ConnectionError):
        run_durable(RUN, Body(ConnectionError()), org="first")
    run_durable(RUN, Body(), org="second")
    assert get_run(RUN).org == "first"  # type: ignore[union-attr]


@pytest.mark.row("runs", "D50")
@pytest.mark.parametrize("org", ["", "x" * 129, " a", "a\0", "a\n", "\ud800"], ids=ascii)
def test_an_organization_is_checked_as_a_jobs_is(org: str) -> None:
    with pytest.raises(ValueError, match="org"):
        run_durable(RUN, Body(), org=org)
    assert Run.objects.count() == 0


@pytest.mark.row("runs", "D50")
def test_an_organization_is_text() -> None:
    with pytest.raises(TypeError, match="org"):
        run_durable(RUN, Body(), org=7)  # type: ignore[arg-type]
    run_durable(RUN, Body(), org="😀" * 128)
    assert run_row().org == "😀" * 128


# restarts


@pytest.mark.row("runs", "D52")
def test_a_worker_that_comes_back_under_the_same_name_waits_for_the_lease(
    declare: Declare, make_worker: MakeWorker, aside: Aside
) -> None:
    gate, bodies, told = s.Gate(), Body("once"), []

    def handle(payload: Any, ctx: JobContext) -> Any:
        ctx.step("first", bodies)
        if ctx.attempt == 1:
            gate()
        try:
            return ctx.step("second", Body(ctx.attempt))
        except StaleClaim:
            told.append(ctx.attempt)
            raise

    job_id = declare("t.restart", handle).enqueue()
    old = aside(make_worker(ttl=s.LONG, name="same").run_once)
    gate.wait_reached()
    new = make_worker(ttl=s.LONG, name="same")
    assert new.run_once() == 0  # whoever holds the lease may be alive
    with s.later(s.LONG + 1):
        assert new.run_once() == 1
    gate.open()
    old.result()
    assert (state_of(job_id), job_of(job_id).result, told) == ("succeeded", 2, [1])
    assert bodies.count == 1
    run_id = f"job:{job_id}"
    assert (run_row(run_id).state, run_row(run_id).entries) == ("completed", 2)
    assert steps_of(run_id) == [("first", "done", "once"), ("second", "done", 2)]


@pytest.mark.row("runs", "D52")
def test_an_attempt_whose_claim_is_gone_does_not_even_enter(
    declare: Declare, make_worker: MakeWorker
) -> None:
    body, seen = Body(), []

    def handle(payload: Any, ctx: JobContext) -> None:
        Job.objects.filter(id=ctx.job_id).update(claim_token="f" * 32)
        for _ in range(2):
            with pytest.raises((StaleClaim, ExecutionRevoked)) as caught:
                ctx.step("s", body)
            seen.append(caught.type)

    enqueue(declare("t.late", handle))
    make_worker().run_once()
    assert seen == [StaleClaim, ExecutionRevoked]
    assert (body.count, Run.objects.count()) == (0, 0)


# async, and a task that ends while it enters


@pytest.mark.row("runs", "D46")
def test_a_task_canceled_while_it_enters_leaves_no_lock_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its thread finishes the entry that nobody waits for any more."""
    original = standing.Standing.enter
    rows: list[Any] = []

    async def work(run: Any) -> None:
        raise AssertionError("never begun")

    async def program() -> None:
        loop, begun, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

        def enter(self: Any) -> Any:
            loop.call_soon_threadsafe(begun.set)
            assert go_on.wait(DEADLINE)
            entered = original(self)
            rows.append(run_row().lock_token)
            return entered

        monkeypatch.setattr(standing.Standing, "enter", enter)
        task = asyncio.ensure_future(run_durable(RUN, work))
        await begun.wait()
        task.cancel()
        await asyncio.sleep(0)  # it takes notice
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    async_to_sync(program)()
    assert [len(token) for token in rows] == [32]
    assert standing._hearts._beating == {}
    assert (run_row().lock_token, run_row().state) == (None, "running")
