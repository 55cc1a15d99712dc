"""Runs of job handlers: sync and async, retried, revived, tried without a job, pruned."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections

from gnl_django import (
    AsyncRunContext,
    ExecutionRevoked,
    InvalidPayload,
    JobContext,
    PermanentFailure,
    RunContext,
    claim,
    current_step,
    get_run,
    list_steps,
    retry_job,
    run_durable,
    run_handler_once,
)
from gnl_django.core import clock
from gnl_django.models import Job, Mark, Run, Step
from gnl_django.runs import retention
from tests.conformance.conftest import NOON, Declare, FailPoint, MakeWorker
from tests.conformance.helpers import job_of, outcomes_of, state_of
from tests.conformance.support_runs import Body, crash_at, keys_of, make_run, run_row, steps_of

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.row("runs", "D68")
@pytest.mark.parametrize("mode", ["plain", "side_effect", "atomic"])
def test_a_handler_that_crashed_after_the_charge_charges_once(
    declare: Declare, make_worker: MakeWorker, failpoint: FailPoint, mode: str
) -> None:
    charge = Body("receipt")
    how = {} if mode == "plain" else {mode: True}

    def handle(payload: Any, ctx: JobContext) -> Any:
        receipt = ctx.step("charge", charge, payload, **how)
        ctx.step("mail", Body())
        return receipt

    job_id = declare("t.charge", handle, retry_delay=0).enqueue(7)
    worker = make_worker()
    crash_at(failpoint, "step.committed")
    worker.run_once()
    assert (state_of(job_id), run_row(f"job:{job_id}").state) == ("ready", "running")
    worker.run_until_idle()
    assert (state_of(job_id), run_row(f"job:{job_id}").state) == ("succeeded", "completed")
    assert (charge.calls, job_of(job_id).result) == ([(7,)], "receipt")
    assert outcomes_of(job_id) == ["failed", "succeeded"] or outcomes_of(job_id) == ["failed"]
    assert list(Step.objects.order_by("ordinal").values_list("key", "attempt")) == [
        ("charge", 1), ("mail", 2),
    ]  # fmt: skip


@pytest.mark.row("runs", "D72")
@pytest.mark.parametrize("why", ["timeout", "canceled"])
def test_a_run_in_a_handler_stops_with_it_at_the_next_step_and_resumes(
    declare: Declare, make_worker: MakeWorker, why: Any
) -> None:
    bodies, seen = [Body("a"), Body("b")], []

    def work(run: RunContext, ctx: JobContext) -> Any:
        assert run.signal is ctx.signal
        first = run.step("first", bodies[0])
        if ctx.attempt == 1 and job_of(ctx.job_id).revivals == 0:
            ctx.signal.revoke(why)
        try:
            return [first, run.step("second", bodies[1])]
        except ExecutionRevoked as error:
            seen.append(error.why)
            raise

    def handle(payload: Any, ctx: JobContext) -> Any:
        return ctx.run(work, ctx)

    job_id = declare("t.stop", handle, retry_delay=0).enqueue()
    worker = make_worker()
    worker.run_once()
    assert (seen, bodies[1].count) == ([why], 0)
    if why == "canceled":
        assert run_row(f"job:{job_id}").state == "canceled"
        retry_job(job_id)
    worker.run_until_idle()
    assert (state_of(job_id), job_of(job_id).result) == ("succeeded", ["a", "b"])
    assert [body.count for body in bodies] == [1, 1]


@pytest.mark.row("runs", "D72")
def test_a_lone_run_in_a_handler_stops_with_it(declare: Declare, make_worker: MakeWorker) -> None:
    def work(run: RunContext, ctx: JobContext) -> None:
        run.step("first", Body())
        if ctx.attempt == 1:
            ctx.signal.revoke("timeout")
        run.step("second", Body())

    def handle(payload: Any, ctx: JobContext) -> None:
        run_durable("alone", work, ctx)

    job_id = declare("t.stop", handle, retry_delay=0).enqueue()
    worker = make_worker()
    worker.run_once()
    assert (state_of(job_id), run_row("alone").state, keys_of("alone")) == (
        "ready", "running", ["first"],
    )  # fmt: skip
    worker.run_until_idle()
    assert (state_of(job_id), run_row("alone").state) == ("succeeded", "completed")


@pytest.mark.row("runs", "D73")
def test_an_async_handler_has_the_same_steps_and_its_database_is_never_on_the_loop(
    declare: Declare, make_worker: MakeWorker, failpoint: FailPoint
) -> None:
    threads: dict[str, set[int]] = {"journal": set(), "loop": set(), "sync": set()}
    bodies = Body()
    for point in ("step.begin", "step.claimed", "step.effect_done", "step.committed"):
        failpoint(point, lambda: threads["journal"].add(threading.get_ident()))

    async def coroutine(n: int) -> int:
        threads["loop"].add(threading.get_ident())
        bodies(n)
        assert current_step() is not None
        await asyncio.sleep(0)
        return n

    def plain(n: int) -> int:
        threads["sync"].add(threading.get_ident())
        assert current_step() is not None
        return Job.objects.count() + n

    async def inner(run: AsyncRunContext) -> Any:
        return await run.step("inner", coroutine, 6)

    async def handle(payload: Any, ctx: Any) -> Any:
        threads["loop"].add(threading.get_ident())
        found = [
            await ctx.step("coroutine", coroutine, 1),
            await ctx.step("plain", plain, 1),
            await ctx.step("effect", coroutine, 3, side_effect=True),
            await ctx.step("atomic", plain, 3, atomic=True),
            *await asyncio.gather(*(ctx.step("many", coroutine, n) for n in range(3))),
            await ctx.run(inner),
            await run_durable(ctx.run_id, inner),
            await ctx.claim("k"),
            await ctx.frozen("f", Body("frozen")),
        ]
        if ctx.attempt == 1:
            raise ConnectionError
        return found

    job_id = declare("t.async", handle, retry_delay=0, max_attempts=2).enqueue()
    make_worker().run_until_idle()
    job = job_of(job_id)
    assert job.result == [1, 2, 3, 4, 0, 1, 2, 6, 6, False, "frozen"], job.error
    assert bodies.count == 7
    assert keys_of(f"job:{job_id}") == [
        *("coroutine", "plain", "effect", "atomic", "many", "many#2", "many#3", "inner", "inner#2")
    ]
    assert run_row(f"job:{job_id}").state == "completed"
    assert len(threads["loop"]) == 1
    assert not threads["loop"] & (threads["journal"] | threads["sync"])


@pytest.mark.row("runs", "D73")
def test_steps_of_a_sync_handler_may_be_called_by_its_threads(
    declare: Declare, make_worker: MakeWorker
) -> None:
    bodies = Body()

    def handle(payload: Any, ctx: JobContext) -> Any:
        def one(n: int) -> Any:
            try:
                return ctx.step(f"s{n}", lambda: bodies(n) or [n, current_step().key])  # type: ignore[union-attr]
            finally:
                connections.close_all()

        def work(run: RunContext) -> Any:
            with ThreadPoolExecutor(4) as pool:
                return sorted(pool.map(one, range(12)))

        found = ctx.run(work, strict=False)
        if ctx.attempt == 1:
            raise ConnectionError
        return found

    job_id = declare("t.threads", handle, retry_delay=0, max_attempts=2).enqueue()
    make_worker().run_until_idle()
    assert job_of(job_id).result == [[n, f"s{n}"] for n in range(12)], job_of(job_id).error
    assert bodies.count == 12
    assert sorted(Step.objects.values_list("ordinal", flat=True)) == list(range(1, 13))


@pytest.mark.row("runs", "D84")
@pytest.mark.row("queue", "C117")
def test_the_finished_steps_of_a_revived_job_do_not_run_again(
    declare: Declare, make_worker: MakeWorker
) -> None:
    bodies = [Body(n) for n in range(5)]

    def handle(payload: Any, ctx: JobContext) -> Any:
        for n, body in enumerate(bodies):
            if n == 2 and job_of(ctx.job_id).revivals == 0:
                raise PermanentFailure("step 3 of 5")
            ctx.step(f"s{n}", body, side_effect=n % 2 == 0)
        return ctx.run_id

    job_id = declare("t.fulfil", handle).enqueue(key="order-7")
    worker = make_worker()
    worker.run_once()
    assert state_of(job_id) == "dead"
    assert retry_job(job_id) == job_id
    worker.run_once()
    job = job_of(job_id)
    assert (job.state, job.attempt, job.revivals) == ("succeeded", 1, 1)
    assert job.result == f"job:{job_id}"
    assert [body.count for body in bodies] == [1] * 5
    assert get_run(f"job:{job_id}").entries == 2  # type: ignore[union-attr]


# retention


DAY = timedelta(days=1)
SECOND = timedelta(seconds=1)


def prune() -> dict[str, int]:
    """Delete what is old enough; return how many runs and marks."""
    found = {"runs": 0, "marks": 0}
    for batch in retention.batches("default"):
        for name, count in batch.items():
            found[name] += count
    return found


@pytest.mark.row("runs", "D85")
def test_ended_runs_go_after_thirty_days_with_their_steps(frozen: clock.Override) -> None:
    for age, state in [
        (30 * DAY + SECOND, "completed"), (30 * DAY, "failed"), (30 * DAY + SECOND, "canceled"),
        (30 * DAY - SECOND, "completed"), (30 * DAY - SECOND, "failed"), (SECOND, "canceled"),
    ]:  # fmt: skip
        run = make_run(f"{state} {age}", state=state, finished_at=NOON - age)
        Step.objects.create(
            run=run, key="s", ordinal=1, mode="plain", state="done", attempt=1, started_at=NOON,
            finished_at=NOON,
        )  # fmt: skip
    make_run("running", created_at=NOON - 99 * DAY)
    assert prune() == {"runs": 3, "marks": 0}
    kept = set(Run.objects.values_list("run_id", flat=True))
    assert kept == {
        "running",
        f"completed {30 * DAY - SECOND}",
        f"failed {30 * DAY - SECOND}",
        f"canceled {SECOND}",
    }
    assert set(Step.objects.values_list("run__run_id", flat=True)) == kept - {"running"}
    assert prune() == {"runs": 0, "marks": 0}


@pytest.mark.row("runs", "D85")
def test_the_run_of_a_job_that_exists_is_kept(
    declare: Declare, make_worker: MakeWorker, frozen: clock.Override
) -> None:
    def handle(payload: Any, ctx: JobContext) -> None:
        ctx.step("s", Body())

    kind = declare("t.kept", handle)
    kept, gone = kind.enqueue(), kind.enqueue()
    make_worker().run_until_idle()
    frozen.advance(30 * DAY + SECOND)
    Job.objects.filter(id=gone).delete()
    for run_id in ("job:x", "job:0", f"job:{'9' * 30}", "wf:1:2", "sched:1:1", "evt:c:1"):
        make_run(run_id, state="completed", finished_at=NOON)
    assert prune()["runs"] == 7
    assert list(Run.objects.values_list("run_id", flat=True)) == [f"job:{kept}"]
    assert steps_of(f"job:{kept}") == [("s", "done", None)]


@pytest.mark.row("runs", "D85")
def test_marks_go_after_ninety_days(frozen: clock.Override) -> None:
    claim("old")
    frozen.advance(SECOND)
    claim("young")
    frozen.set(NOON + 90 * DAY)
    assert prune() == {"runs": 0, "marks": 1}
    assert list(Mark.objects.values_list("key", flat=True)) == ["young"]
    assert claim("old") is True


@pytest.mark.row("runs", "D85")
def test_nothing_goes_that_is_kept_for_ever(frozen: clock.Override, settings: Any) -> None:
    settings.GNL = {"KEEP_RUNS": None, "KEEP_MARKS": None}
    make_run("r", state="completed", finished_at=NOON - 9999 * DAY)
    claim("k")
    frozen.advance(9999 * DAY)
    assert prune() == {"runs": 0, "marks": 0}
    settings.GNL = {"KEEP_RUNS": 60, "KEEP_MARKS": SECOND}
    assert prune() == {"runs": 1, "marks": 1}


@pytest.mark.row("runs", "D85")
def test_a_long_history_goes_in_batches_past_what_is_kept(
    frozen: clock.Override, declare: Declare
) -> None:
    kind = declare("t.kept")
    kept = {f"job:{kind.enqueue()}" for _ in range(3)}
    at = NOON - 60 * DAY
    values = {"state": "completed", "entries": 1, "created_at": at, "updated_at": at}
    names = [*kept, *(f"r{n}" for n in range(250))]
    Run.objects.bulk_create(
        Run(run_id=name, finished_at=at + n % 3 * SECOND, **values) for n, name in enumerate(names)
    )
    batches = [batch["runs"] for batch in retention.batches("default") if "runs" in batch]
    assert sum(batches) == 250
    assert max(batches) <= 100
    assert set(Run.objects.values_list("run_id", flat=True)) == kept


# a trial without a job


@pytest.mark.row("runs", "D87")
def test_a_handler_that_is_tried_once_has_its_steps_and_leaves_no_rows(declare: Declare) -> None:
    told: list[Any] = []

    def handle(payload: Any, ctx: JobContext) -> Any:
        with pytest.raises(ConnectionError):
            ctx.step("fails", Body(ConnectionError()), side_effect=True)
        with pytest.raises(ConnectionError):
            ctx.step("fails", Body(ConnectionError()), atomic=True)
        return [
            ctx.step("s", lambda: told.append(current_step()) or (1, 2)),
            ctx.step("s", Body("two"), side_effect=True, recover=Body("never")),
            ctx.step("s", Body("three"), atomic=True),
            ctx.run(lambda run: (run.step("s", Body(4)), run.input, run.attempt), input={"a": 1}),
            [ctx.claim("k"), ctx.claim("k"), ctx.claim("other", 5), ctx.claim("other", 5)],
            [ctx.frozen("f", Body(None)), ctx.frozen("f", Body(5))],
        ]

    declare("t.trial", handle)
    assert run_handler_once("t.trial", context={"run_id": "try"}) == [
        [1, 2],
        "two",
        "three",
        (4, {"a": 1}, 1),
        [True, False, True, False],
        [None, None],
    ]
    assert told[0].idempotency_key == "try/s"
    assert [model.objects.count() for model in (Run, Step, Mark, Job)] == [0] * 4


@pytest.mark.row("runs", "D87")
def test_an_async_handler_is_tried_alike(declare: Declare) -> None:
    async def handle(payload: Any, ctx: Any) -> Any:
        async def body(n: int) -> int:
            return n

        async def inner(run: AsyncRunContext) -> Any:
            return await run.step("s", body, 9, side_effect=True)

        found = await asyncio.gather(*(ctx.step("s", body, n) for n in range(3)))
        return [*found, await ctx.run(inner), await ctx.claim("k"), await ctx.claim("k")]

    declare("t.trial", handle)
    assert run_handler_once("t.trial") == [0, 1, 2, 9, True, False]
    assert Run.objects.count() == 0


@pytest.mark.row("runs", "D87")
def test_the_rules_of_steps_hold_in_a_trial(declare: Declare) -> None:
    def handle(payload: Any, ctx: JobContext) -> None:
        with pytest.raises(ValueError, match="step name"):
            ctx.step("a#b", Body())
        with pytest.raises(RuntimeError, match="inside the body"):
            ctx.step("outer", lambda: ctx.step("inner", Body()))
        with pytest.raises(TypeError):
            ctx.step("a", Body(), atomic=True, side_effect=True)
        with pytest.raises(InvalidPayload):
            ctx.step("a", Body({1}))
        ctx.signal.revoke("timeout")
        with pytest.raises(ExecutionRevoked):
            ctx.step("b", Body())

    declare("t.trial", handle)
    run_handler_once("t.trial")


# what a person reads


@pytest.mark.row("runs", "D57")
def test_a_run_and_its_steps_can_be_read(declare: Declare, make_worker: MakeWorker) -> None:
    def handle(payload: Any, ctx: JobContext) -> None:
        ctx.run(lambda run: None, input=[1])
        for n in range(5):
            ctx.step("s", Body(n), side_effect=n == 1)
        raise PermanentFailure("no")

    job_id = declare("t.read", handle).enqueue(org="acme")
    make_worker().run_once()
    info = get_run(f"job:{job_id}")
    assert info is not None
    assert (info.run_id, info.org, info.state, info.strict) == (
        f"job:{job_id}", "acme", "failed", True,
    )  # fmt: skip
    assert (info.input, info.result, info.note, info.entries, info.steps) == ([1], None, "", 1, 5)
    assert (info.cancel_reason, info.scheduled_for) == ("", None)
    assert info.created_at <= info.finished_at  # type: ignore[operator]
    page = list_steps(f"job:{job_id}", limit=2)
    assert [(row.key, row.ordinal, row.mode, row.state, row.output) for row in page] == [
        ("s", 1, "plain", "done", 0), ("s#2", 2, "side_effect", "done", 1),
    ]  # fmt: skip
    assert [row.key for row in list_steps(f"job:{job_id}", after=2)] == ["s#3", "s#4", "s#5"]
    assert (get_run("unknown"), list_steps("unknown")) == (None, [])
