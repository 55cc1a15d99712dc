"""What users' code may do to a run without breaking its promises."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import Group
from django.db import connection, connections, transaction

from gnl_django import (
    JobContext,
    RunBusy,
    RunContext,
    StaleClaim,
    StepInFlight,
    StepUnresolved,
    current_step,
    enqueue,
    get_run,
    resolve_step,
    run_durable,
)
from gnl_django.models import Job, Run, Step
from gnl_django.runs import standing
from tests.conformance.conftest import Aside, Declare, MakeWorker
from tests.conformance.helpers import DEADLINE, job_of, state_of
from tests.conformance.support_runs import (
    RUN,
    Body,
    async_executor,
    claimed_elsewhere,
    executor,
    keys_of,
    run_row,
    step_row,
    steps_of,
)

pytestmark = pytest.mark.django_db(transaction=True)

MODES: list[dict[str, bool]] = [{}, {"side_effect": True}, {"atomic": True}]


# values and exceptions


class Unspeakable(Exception):
    """An exception whose text cannot be had."""

    def __init__(self, trouble: BaseException) -> None:
        super().__init__()
        self.trouble = trouble

    def __str__(self) -> str:
        raise self.trouble

    __repr__ = __str__


TROUBLES = [ValueError(), RecursionError(), SystemExit(), KeyboardInterrupt()]


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda error: type(error).__name__)
def test_an_exception_without_a_text_ends_a_step_and_a_run_as_any_other(
    trouble: BaseException,
) -> None:
    def work(run: RunContext) -> None:
        run.step("s", Body(Unspeakable(trouble)), side_effect=True)

    with pytest.raises(Unspeakable):
        run_durable(RUN, work)
    assert (step_row("s").state, run_row().state, run_row().lock_token) == (
        "failed", "failed", None,
    )  # fmt: skip
    for text in (step_row("s").error, run_row().error):
        assert text == "Unspeakable: (its text cannot be read)"
    assert run_row().error_class.endswith(".Unspeakable")
    assert standing._hearts._beating == {}


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "😀" * 9_000, "x" * 100_000], ids=len)
def test_any_text_of_an_exception_is_stored(text: str) -> None:
    def work(run: RunContext) -> None:
        run.step("s", Body(ValueError(text)), side_effect=True)

    with pytest.raises(ValueError):  # noqa: PT011 - its text is the point
        run_durable(RUN, work)
    for stored in (step_row("s").error, run_row().error):
        assert stored.startswith("ValueError: ")
        assert len(stored.encode()) <= 8 * 1024


class Unwalkable(dict[str, Any]):
    """JSON that cannot be walked."""

    def items(self) -> Any:
        """Raise."""
        raise LookupError("not today")


def test_a_result_that_cannot_be_read_frees_the_run_all_the_same() -> None:
    value = Unwalkable(a=1)
    assert run_durable(RUN, lambda run: value) is value
    row = run_row()
    assert (row.state, row.result, row.lock_token) == ("completed", None, None)
    assert row.note == "result not stored: LookupError"
    assert standing._hearts._beating == {}


@pytest.mark.parametrize("how", MODES, ids=str)
def test_an_output_that_cannot_be_read_is_not_recorded(how: dict[str, bool]) -> None:
    with pytest.raises(LookupError):
        executor().step("s", Body(Unwalkable(a=1)), **how)
    assert steps_of() == ([("s", "failed", None)] if "side_effect" in how else [])


@pytest.mark.parametrize("how", MODES, ids=str)
def test_a_body_may_raise_what_ends_an_iteration(how: dict[str, bool]) -> None:
    with pytest.raises((StopIteration, RuntimeError)):
        executor().step("s", next, iter([]), **how)
    assert steps_of() == ([("s", "failed", None)] if "side_effect" in how else [])


def test_a_function_that_gives_a_coroutine_back_has_not_completed() -> None:
    async def work(run: Any) -> None:
        raise AssertionError("never awaited")

    with pytest.raises(TypeError, match="coroutine"):
        run_durable(RUN, lambda run: work(run))
    assert (run_row().state, run_row().lock_token) == ("failed", None)


@pytest.mark.parametrize("wrong", [5, "work", None, [], object()], ids=repr)
def test_what_is_no_function_enters_nothing(wrong: Any) -> None:
    with pytest.raises(TypeError):
        run_durable(RUN, wrong)
    assert Run.objects.count() == 0


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"claim_ttl": 0, "side_effect": True}, ValueError),
        ({"claim_ttl": -1, "side_effect": True}, ValueError),
        ({"claim_ttl": 86_401, "side_effect": True}, ValueError),
        ({"claim_ttl": 1.5, "side_effect": True}, TypeError),
        ({"claim_ttl": True, "side_effect": True}, TypeError),
        ({"claim_ttl": "60", "side_effect": True}, TypeError),
        ({"claim_ttl": timedelta(seconds=5), "side_effect": True}, TypeError),
        ({"recover": 5, "side_effect": True}, TypeError),
        ({"recover": Body()}, TypeError),
        ({"claim_ttl": 5}, TypeError),
        ({"claim_ttl": 5, "atomic": True}, TypeError),
        ({"atomic": True, "side_effect": True}, TypeError),
    ],
    ids=str,
)
def test_wrong_options_of_a_step_are_refused(options: Any, error: type[Exception]) -> None:
    body, run = Body(), executor()
    with pytest.raises(error):
        run.step("s", body, **options)
    with pytest.raises(TypeError):
        run.step("s", None, **options)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="step name must be text"):
        run.step(7, body)  # type: ignore[arg-type]
    assert (body.count, steps_of()) == (0, [])


# catching everything


def test_a_handler_that_catches_everything_writes_nothing_after_its_claim_is_lost(
    declare: Declare, make_worker: MakeWorker
) -> None:
    bodies, caught = Body(), []

    def handle(payload: Any, ctx: JobContext) -> str:
        ctx.step("first", bodies)
        Job.objects.filter(id=ctx.job_id).update(claim_token="f" * 32)
        for mode in [*MODES, *MODES]:
            try:
                ctx.step("next", bodies, **mode)
            except BaseException as error:  # noqa: BLE001 - what this test is about
                caught.append(type(error).__name__)
        return "well done"

    job_id = declare("t.deaf", handle).enqueue()
    make_worker().run_once()
    assert caught == ["StaleClaim", *["ExecutionRevoked"] * 5]
    assert bodies.count == 2  # a plain body comes before its fence
    assert keys_of(f"job:{job_id}") == ["first"]
    assert (state_of(job_id), job_of(job_id).result) != ("succeeded", "well done")


def test_a_step_after_the_handlers_end_writes_nothing(
    declare: Declare, make_worker: MakeWorker, aside: Aside
) -> None:
    kept: list[JobContext] = []

    def handle(payload: Any, ctx: JobContext) -> None:
        kept.append(ctx)
        ctx.step("first", Body())

    job_id = declare("t.leak", handle).enqueue()
    make_worker().run_once()
    body = Body()
    for how in MODES:
        with pytest.raises(Exception, match=r"somebody else|revoked"):
            aside(lambda how=how: kept[0].step("late", body, **how)).result()
    assert (keys_of(f"job:{job_id}"), body.count) == (["first"], 1)


# threads and tasks


def test_threads_share_a_run_and_its_counter() -> None:
    def work(run: RunContext) -> list[Any]:
        start = threading.Barrier(8)

        def one(n: int) -> Any:
            try:
                start.wait(DEADLINE)
                return [run.step("s", lambda: [current_step().key])[0] for _ in range(10)]  # type: ignore[union-attr]
            finally:
                connections.close_all()

        with ThreadPoolExecutor(8) as pool:
            return sorted(key for keys in pool.map(one, range(8)) for key in keys)

    keys = run_durable(RUN, work)
    assert keys == sorted(["s", *(f"s#{n}" for n in range(2, 81))])
    assert list(Step.objects.order_by("ordinal").values_list("ordinal", flat=True)) == list(
        range(1, 81)
    )


def test_a_task_that_outlives_its_run_writes_nothing() -> None:
    async def program() -> Any:
        left: list[Any] = []
        go = asyncio.Event()

        async def late() -> str:
            await go.wait()
            return "late"

        async def work(run: Any) -> str:
            left.append(asyncio.ensure_future(run.step("late", late)))
            await run.step("s", Body("s"))
            return "done"

        assert await run_durable(RUN, work) == "done"
        go.set()
        return (await asyncio.gather(*left, return_exceptions=True))[0]

    assert isinstance(async_to_sync(program)(), StaleClaim)
    assert keys_of() == ["s"]


def test_a_step_within_a_recover_is_refused() -> None:
    """It would be there in this attempt only, and shift all others."""
    claimed_elsewhere("pay", state="failed")
    run = executor()
    inner = Body()

    def recover(info: Any) -> Any:
        assert current_step() == info
        return {"done": True, "output": run.step("ask", inner)}

    with pytest.raises(RuntimeError, match="inside the body"):
        run.step("pay", Body(), side_effect=True, recover=recover)
    assert (inner.count, keys_of()) == (0, ["pay"])


def test_a_body_may_execute_another_run_and_ask_for_marks() -> None:
    def body(run: RunContext) -> Any:
        outer = current_step()
        inner = run_durable("r2", lambda other: other.step("s", lambda: current_step().key))  # type: ignore[union-attr]
        assert current_step() == outer
        return [inner, run.claim("k"), run.frozen("f", Body(1))]

    assert run_durable(RUN, lambda run: run.step("outer", body, run)) == ["s", True, 1]
    assert (keys_of(), keys_of("r2")) == (["outer"], ["s"])


def test_a_run_within_itself_is_busy() -> None:
    body = Body()

    def work(run: RunContext) -> str:
        with pytest.raises(RunBusy):
            run_durable(RUN, body)
        return str(run.step("s", Body("goes on")))

    assert run_durable(RUN, work) == "goes on"
    assert body.count == 0


# connections and transactions


@pytest.mark.parametrize("how", MODES[:2], ids=str)
def test_a_body_may_close_its_connections(how: dict[str, bool]) -> None:
    def work(run: RunContext) -> Any:
        run.step("closes", connections.close_all, **how)
        return run.step("goes on", lambda: Group.objects.count(), **how)

    assert run_durable(RUN, work) == 0
    assert keys_of() == ["closes", "goes on"]


@pytest.mark.parametrize("how", MODES[:2], ids=str)
def test_a_transaction_that_a_body_leaves_open_is_not_taken_for_a_record(
    declare: Declare, make_worker: MakeWorker, how: dict[str, bool]
) -> None:
    bodies: list[int] = []

    def opens() -> str:
        bodies.append(1)
        if len(bodies) == 1:
            transaction.atomic().__enter__()
        Group.objects.create(name=f"g{len(bodies)}")
        return "opened"

    def handle(payload: Any, ctx: JobContext) -> Any:
        found = ctx.step("opens", opens, **how)
        if ctx.attempt == 1:
            raise OSError
        return found

    job_id = declare("t.open", handle, retry_delay=0).enqueue()
    worker = make_worker()
    worker.run_once()
    run_id = f"job:{job_id}"
    if "side_effect" in how:
        assert step_row("opens", run_id).state == "claimed"  # at most once: nobody knows
        with pytest.raises(StepInFlight):
            raise_of(job_id, worker)
        Step.objects.update(claimed_at=step_row("opens", run_id).claimed_at - timedelta(hours=1))
        assert resolve_step(run_id, "opens", output="decided")
        Job.objects.update(run_at=job_of(job_id).enqueued_at)
        worker.run_until_idle()
        assert (state_of(job_id), job_of(job_id).result, len(bodies)) == ("succeeded", "decided", 1)
        assert Group.objects.count() == 0
    else:
        assert keys_of(run_id) == []
        worker.run_until_idle()
        assert (state_of(job_id), len(bodies)) == ("succeeded", 2)
        assert list(Group.objects.values_list("name", flat=True)) == ["g2"]


def raise_of(job_id: int, worker: Any) -> None:
    """Run the job's next attempt; raise StepInFlight when it was deferred."""
    worker.run_once()
    if job_of(job_id).deferrals:
        raise StepInFlight("", 0, 0, 0)


def test_a_plain_step_in_a_transaction_that_is_rolled_back_was_never_there(
    declare: Declare, make_worker: MakeWorker
) -> None:
    def handle(payload: Any, ctx: JobContext) -> Any:
        ctx.step("before", Body())
        with suppress(LookupError), transaction.atomic():
            ctx.step("within", lambda: Group.objects.create(name="g").pk)
            raise LookupError
        return ctx.step("after", Body("after"))

    job_id = declare("t.back", handle).enqueue()
    make_worker().run_once()
    assert (state_of(job_id), job_of(job_id).result) == ("succeeded", "after")
    assert keys_of(f"job:{job_id}") == ["before", "after"]
    assert Group.objects.count() == 0


@pytest.mark.parametrize("how", MODES, ids=str)
def test_an_entry_that_was_rolled_back_is_made_again(
    declare: Declare, make_worker: MakeWorker, how: dict[str, bool]
) -> None:
    """The first step of all stands in a transaction of the handler that comes to nothing."""

    def handle(payload: Any, ctx: JobContext) -> Any:
        with suppress(LookupError), transaction.atomic():
            with transaction.atomic():
                ctx.step("within", Body())
            raise LookupError
        return ctx.step("after", Body("after"), **how)

    job_id = declare("t.back", handle, max_attempts=1).enqueue()
    make_worker().run_once()
    assert (state_of(job_id), job_of(job_id).result) == ("succeeded", "after"), job_of(job_id).error
    assert keys_of(f"job:{job_id}") == ["after"]
    assert (run_row(f"job:{job_id}").state, run_row(f"job:{job_id}").entries) == ("completed", 1)


def test_an_entry_whose_transaction_commits_stays(
    declare: Declare, make_worker: MakeWorker
) -> None:
    def handle(payload: Any, ctx: JobContext) -> Any:
        with transaction.atomic():
            with transaction.atomic():
                ctx.step("first", Body())
            ctx.step("second", Body())
        return ctx.step("third", Body("third"))

    job_id = declare("t.commits", handle, max_attempts=1).enqueue()
    make_worker().run_once()
    assert state_of(job_id) == "succeeded"
    assert keys_of(f"job:{job_id}") == ["first", "second", "third"]
    assert run_row(f"job:{job_id}").entries == 1


@pytest.mark.parametrize("how", MODES, ids=str)
def test_a_run_that_was_deleted_ends_and_does_not_go_round(
    declare: Declare, make_worker: MakeWorker, how: dict[str, bool]
) -> None:
    def handle(payload: Any, ctx: JobContext) -> Any:
        ctx.step("first", Body())
        Step.objects.all().delete()
        Run.objects.all().delete()
        ctx.step("second", Body(), **how)

    job_id = declare("t.gone", handle, max_attempts=1).enqueue()
    make_worker().run_once()
    assert state_of(job_id) == "dead"
    assert Step.objects.count() == 0


# rows that somebody has edited


@pytest.mark.parametrize("state", ["released", "failed", "claimed"])
def test_a_claim_without_a_token_or_a_time_can_be_adopted_and_decided(state: str) -> None:
    for key in ("adopt", "recover", "decide"):
        run_id = f"run {key}"
        claimed_elsewhere(key, run_id=run_id, state=state)
        edited = {"claim_token": None, "claim_ttl": None, "claimed_at": None}
        Step.objects.filter(key=key).update(**edited)
    how: dict[str, Any] = {"side_effect": True}
    adopted = executor("run adopt").step(
        "adopt", Body("ours"), recover=lambda info: {"done": False}, **how
    )
    assert adopted == "ours"
    if state != "released":
        found = executor("run recover").step(
            "recover", Body("ours"), recover=lambda info: {"done": True, "output": "found"}, **how
        )
        assert found == "found"
        with pytest.raises(StepUnresolved):
            executor("run decide").step("decide", Body(), **how)
        assert resolve_step("run decide", "decide", output=1) is True


# bodies that give work


@pytest.mark.parametrize("how", MODES, ids=str)
def test_a_body_may_enqueue(
    declare: Declare, make_worker: MakeWorker, how: dict[str, bool]
) -> None:
    declare("t.child")

    def handle(payload: Any, ctx: JobContext) -> Any:
        found = [
            ctx.step("child", lambda: enqueue("t.child", key="one"), **how),
            ctx.step("child", ctx.enqueue, "t.child", **how),
        ]
        if ctx.attempt == 1:
            raise OSError
        return found

    job_id = declare("t.parent", handle, retry_delay=0).enqueue(org="acme")
    make_worker(concurrency=1).run_until_idle()
    children = list(Job.objects.filter(kind="t.child").order_by("id").values_list("id", "org"))
    assert job_of(job_id).result == [child for child, _ in children]
    assert [org for _, org in children] == ["", "acme"]


def test_coroutines_of_many_steps_at_once_keep_their_order() -> None:
    async def program() -> Any:
        run = await async_executor()

        async def body(n: int) -> int:
            for _ in range(n % 3):
                await asyncio.sleep(0)
            return n

        return await asyncio.gather(
            *(run.step(f"s{n % 7}", body, n, side_effect=n % 5 == 0) for n in range(60))
        )

    assert async_to_sync(program)() == list(range(60))
    assert async_to_sync(program)() == list(range(60))
    ordinals = Step.objects.order_by("ordinal").values_list("ordinal", "output")
    assert [(ordinal, ordinal - 1) for ordinal in range(1, 61)] == [
        (ordinal, output) for ordinal, output in ordinals
    ]


def test_a_broken_transaction_of_the_caller_is_the_callers_affair() -> None:
    run = executor()
    with suppress(Exception), transaction.atomic():
        with suppress(Exception), connection.cursor() as cursor:
            cursor.execute("SELECT nonsense FROM nowhere")
        transaction.set_rollback(True)
        run.step("s", Body())
    assert run.step("t", Body(1)) == 1
    assert get_run(RUN).steps == 1  # type: ignore[union-attr]
