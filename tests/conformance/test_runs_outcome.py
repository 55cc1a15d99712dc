"""Input, outcome and cancel: what a run is after its function or its owner has ended (D54-D64)."""

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync

from gnl_django import (
    ExecutionRevoked,
    InvalidPayload,
    JobContext,
    NonDeterministicRun,
    PermanentFailure,
    RunBusy,
    RunCanceled,
    RunContext,
    RunInputMismatch,
    StaleClaim,
    Worker,
    cancel_job,
    cancel_run,
    discard_job,
    get_run,
    list_steps,
    retry_job,
    retry_jobs,
    run_durable,
)
from gnl_django.core import clock
from gnl_django.core.db import now
from gnl_django.core.revocation import Revocation
from gnl_django.models import Job, Run
from gnl_django.queue.options import dedup
from gnl_django.runs import standing
from tests.conformance import support_claim as s
from tests.conformance.conftest import NOON, Aside, Declare, FailPoint, MakeWorker
from tests.conformance.helpers import job_of, state_of
from tests.conformance.support_runs import (
    RUN,
    Body,
    executor,
    keys_of,
    make_run,
    run_columns,
    run_row,
    steps_of,
)

pytestmark = pytest.mark.django_db(transaction=True)


def state(run_id: str = RUN) -> str:
    return str(run_row(run_id).state)


def fails(run: RunContext) -> None:
    raise OSError("cut off")


# input


def begun(value: Any = None, *, strict: bool = True) -> None:
    """Leave a run that has failed."""
    with pytest.raises(OSError, match="cut off"):
        run_durable(RUN, fails, input=value, strict=strict)


@pytest.mark.row("runs", "D54")
@pytest.mark.parametrize(
    ("first", "same"),
    [
        ({"a": 1, "b": (2, None)}, {"b": [2, None], "a": 1}),
        ("text", "text"),
        (0, 0),
        ([], ()),
        (False, False),
    ],
    ids=repr,
)
def test_the_same_input_goes_on(first: Any, same: Any) -> None:
    begun(first)
    expected = list(first) if isinstance(first, tuple) else run_row().input
    assert run_durable(RUN, lambda run: run.input, input=same) == expected
    assert (run_row().entries, len(run_row().input_hash)) == (2, 64)


@pytest.mark.row("runs", "D54")
def test_another_input_of_a_strict_run_is_an_error_and_nothing_is_executed() -> None:
    begun({"a": 1})
    body = Body()
    for other in ({"a": 2}, {"a": 1.0}, {"a": True}, {}, [], ""):
        with pytest.raises(RunInputMismatch) as caught:
            run_durable(RUN, body, input=other)
        assert caught.value.run_id == RUN
    assert (body.count, steps_of(), run_row().input) == (0, [], {"a": 1})
    assert (run_row().lock_token, standing._hearts._beating) == (None, {})
    assert run_durable(RUN, lambda run: run.input) == {"a": 1}


@pytest.mark.row("runs", "D54")
def test_another_input_leaves_a_run_as_it_was_whatever_its_state() -> None:
    begun({"a": 1})
    before = run_row()
    with pytest.raises(RunInputMismatch):
        run_durable(RUN, Body(), input={"a": 2})
    assert (before.state, before.error_class) == ("failed", "builtins.OSError")
    assert vars_of(run_row()) == vars_of(before)
    assert run_durable(RUN, lambda run: "done", input={"a": 1}) == "done"
    with pytest.raises(RunInputMismatch):  # completed: the result belongs to the first input
        run_durable(RUN, Body(), input={"a": 2})
    assert run_durable(RUN, Body(), input={"a": 1}) == "done"


def vars_of(run: Run) -> dict[str, Any]:
    return {name: value for name, value in vars(run).items() if not name.startswith("_")}


@pytest.mark.row("runs", "D54", "D59")
def test_a_canceled_entry_freezes_no_input() -> None:
    begun()
    Run.objects.update(cancel_requested_at=now("default"))
    with pytest.raises(RunCanceled):
        run_durable(RUN, Body(), input=1)
    run = run_row()
    assert (run.state, run.input, run.input_hash, run.entries) == ("canceled", None, None, 1)


@pytest.mark.row("runs", "D54")
def test_another_input_of_a_run_that_is_not_strict_gives_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun({"a": 1}, strict=False)
    caplog.set_level(logging.WARNING, "gnl_django")
    assert run_durable(RUN, lambda run: [run.input, run.input], input={"a": 2}) == [{"a": 1}] * 2
    assert len([record for record in caplog.records if RUN in record.getMessage()]) == 1


@pytest.mark.row("runs", "D54")
def test_an_input_that_was_not_given_is_the_frozen_one_or_none_and_may_come_later() -> None:
    begun()
    with pytest.raises(OSError, match="None"):
        run_durable(RUN, lambda run: (_ for _ in ()).throw(OSError(str(run.input))))
    assert run_row().input_hash is None
    begun({"late": 1})
    assert run_durable(RUN, lambda run: run.input) == {"late": 1}


@pytest.mark.row("runs", "D54")
def test_an_input_that_is_no_json_is_refused_before_anything_is_written() -> None:
    body = Body()
    for wrong in ({1}, float("inf"), "\0", "x" * 1_048_577):
        with pytest.raises(InvalidPayload) as caught:
            run_durable(RUN, body, input=wrong)
        assert caught.value.kind == f"run:{RUN}"
    assert (body.count, Run.objects.count()) == (0, 0)


@pytest.mark.row("runs", "D54")
def test_a_jobs_run_freezes_its_input_too(
    declare: Declare, make_worker: MakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    def handle(payload: Any, ctx: JobContext) -> Any:
        ctx.step("before", Body())
        given = {"attempt": ctx.attempt} if payload else "same"
        found = ctx.run(lambda run: run.input, input=given)
        if ctx.attempt == 1:
            raise OSError
        return found

    kind = declare("t.input", handle, retry_delay=0, max_attempts=2)
    same, other = kind.enqueue(False), kind.enqueue(True)
    make_worker(concurrency=1).run_until_idle()
    assert job_of(same).result == "same"
    assert job_of(other).error_class == "gnl_django.errors.RunInputMismatch"
    assert run_row(f"job:{other}").input == {"attempt": 1}


# outcome


@pytest.mark.row("runs", "D55")
@pytest.mark.parametrize("value", [{"a": [1]}, None, 0, "", [], False], ids=repr)
def test_a_completed_run_returns_its_result_and_calls_nothing(value: Any) -> None:
    assert run_durable(RUN, lambda run: value) == value
    body, before = Body("again"), run_columns()
    assert run_durable(RUN, body) == value
    assert (body.count, run_columns()) == (0, before)
    assert (state(), run_row().note, run_row().lock_token) == ("completed", "", None)
    assert run_row().finished_at is not None


@pytest.mark.row("runs", "D55")
@pytest.mark.parametrize(
    "value", [{1, 2}, "x" * 1_048_576, object(), b"x", float("nan")], ids=lambda v: type(v).__name__
)
def test_a_result_that_is_not_stored_leaves_a_note_and_the_steps_replay(value: Any) -> None:
    bodies = [Body(1), Body(2)]

    def work(run: RunContext) -> Any:
        assert [run.step(f"s{n}", body) for n, body in enumerate(bodies)] == [1, 2]
        return value

    for _ in range(2):
        assert run_durable(RUN, work) is value
    row = run_row()
    assert (row.state, row.result, row.entries) == ("completed", None, 1)
    assert row.note.startswith("result not stored: /")
    assert [body.count for body in bodies] == [1, 1]

    def longer(run: RunContext) -> None:
        work(run)
        run.step("one more", bodies[0])

    with pytest.raises(NonDeterministicRun) as caught:
        run_durable(RUN, longer)
    assert (caught.value.recorded, caught.value.called) == (None, "one more")
    assert (bodies[0].count, state()) == (1, "completed")


@pytest.mark.row("runs", "D55")
def test_a_completed_run_whose_function_fails_on_the_way_to_its_result_stays_completed() -> None:
    run_durable(RUN, Body({1}))
    before = run_columns()
    with pytest.raises(OSError, match="cut off"):
        run_durable(RUN, fails)
    assert run_columns() == before


@pytest.mark.row("runs", "D55")
def test_the_first_result_went_through_json_as_the_later_ones() -> None:
    assert run_durable(RUN, lambda run: (1, {"a": (2,)})) == [1, {"a": [2]}]
    assert run_durable(RUN, Body()) == [1, {"a": [2]}]


@pytest.mark.row("runs", "D56")
def test_a_failed_run_is_entered_again() -> None:
    body = Body(1)

    def work(run: RunContext) -> int:
        run.step("s", body)
        seen.append((run_row().state, run_row().error, run_row().finished_at))
        if run.attempt == 1:
            raise OSError("cut off")
        return run.attempt

    seen: list[Any] = []
    with pytest.raises(OSError, match="cut off"):
        run_durable(RUN, work)
    row = run_row()
    assert (row.state, row.error_class, row.error) == (
        "failed", "builtins.OSError", "OSError: cut off",
    )  # fmt: skip
    assert (row.lock_token, row.finished_at is None) == (None, False)
    assert run_durable(RUN, work) == 2
    assert seen == [("running", "", None)] * 2
    row = run_row()
    assert (row.state, row.error_class, row.error, row.result) == ("completed", "", "", 2)
    assert body.count == 1


@pytest.mark.row("runs", "D56")
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit()], ids=repr)
def test_whatever_ends_the_function_frees_the_lock(error: BaseException) -> None:
    with pytest.raises(type(error)):
        run_durable(RUN, Body(error))
    assert (state(), run_row().lock_token, standing._hearts._beating) == ("failed", None, {})


# the run of a job follows it


def both(job_id: int) -> tuple[str, str]:
    """Return the states of a job and its run."""
    return state_of(job_id), state(f"job:{job_id}")


POINTS = {
    "complete": ("running", "running"),
    "retry": ("running", "running"),
    "bury": ("running", "running"),
    "cancel": ("running", "running"),
}


@pytest.fixture
def moments(failpoint: FailPoint, aside: Aside) -> Callable[[int], list[Any]]:
    """Look, from another connection, at a job and its run on both sides of each COMMIT."""

    def watch(job_id: int) -> list[Any]:
        seen: list[Any] = []
        for name in POINTS:
            for side in ("updated", "committed"):

                def look(name: str = name, side: str = side) -> None:
                    seen.append((f"{name}.{side}", *aside(lambda: both(job_id)).result()))

                failpoint(f"{name}.{side}", look)
        return seen

    return watch


@pytest.mark.row("runs", "D57", "D68")
def test_a_jobs_run_follows_it_through_retry_and_success_in_one_transaction(
    declare: Declare, make_worker: MakeWorker, moments: Callable[[int], list[Any]]
) -> None:
    def handle(payload: Any, ctx: JobContext) -> str:
        ctx.step("s", Body())
        if ctx.attempt == 1:
            raise OSError
        return "done"

    job_id = declare("t.follow", handle, retry_delay=0).enqueue()
    seen = moments(job_id)
    worker = make_worker()
    worker.run_once()
    assert both(job_id) == ("ready", "running")
    assert run_row(f"job:{job_id}").finished_at is None
    worker.run_until_idle()
    assert both(job_id) == ("succeeded", "completed")
    assert seen == [
        ("retry.updated", "running", "running"),
        ("retry.committed", "ready", "running"),
        ("complete.updated", "running", "running"),
        ("complete.committed", "succeeded", "completed"),
    ]
    row = run_row(f"job:{job_id}")
    assert (row.result, row.entries, row.finished_at is None) == (None, 2, False)


@pytest.mark.row("runs", "D57", "D84")
def test_a_jobs_run_fails_with_it_and_comes_back_with_it(
    declare: Declare, make_worker: MakeWorker, moments: Callable[[int], list[Any]]
) -> None:
    bodies = [Body(n) for n in range(5)]
    broken = [True]

    def handle(payload: Any, ctx: JobContext) -> Any:
        found = []
        for n, body in enumerate(bodies):
            if n == 2 and broken[0]:
                raise PermanentFailure("step 3 of 5")
            found.append(ctx.step(f"s{n}", body))
        return found

    job_id = declare("t.follow", handle).enqueue()
    seen = moments(job_id)
    worker = make_worker()
    worker.run_once()
    assert both(job_id) == ("dead", "failed")
    assert seen == [
        ("bury.updated", "running", "running"),
        ("bury.committed", "dead", "failed"),
    ]
    assert run_row(f"job:{job_id}").finished_at is not None
    broken.clear()
    broken.append(False)
    retry_job(job_id)
    assert both(job_id) == ("ready", "running")
    assert run_row(f"job:{job_id}").finished_at is None
    assert retry_job(job_id) is None
    worker.run_until_idle()
    assert both(job_id) == ("succeeded", "completed")
    assert job_of(job_id).result == [0, 1, 2, 3, 4]
    assert [body.count for body in bodies] == [1] * 5


@pytest.mark.row("runs", "D57", "D84")
def test_many_jobs_are_revived_with_their_runs(declare: Declare, make_worker: MakeWorker) -> None:
    def handle(payload: Any, ctx: JobContext) -> None:
        ctx.step("s", Body())
        raise PermanentFailure

    kind = declare("t.follow", handle)
    ids = [kind.enqueue(n) for n in range(5)]
    make_worker().run_until_idle()
    assert [both(job_id) for job_id in ids] == [("dead", "failed")] * 5
    retry_jobs(Job.objects.filter(id__in=ids[:3]))
    retry_jobs(ids[3:4])
    assert [both(job_id) for job_id in ids] == [("ready", "running")] * 4 + [("dead", "failed")]


def cancel_inside(job_id: int) -> None:
    assert cancel_job(job_id, "wrong customer")


@pytest.mark.row("runs", "D57")
def test_a_canceled_jobs_run_is_canceled_with_it_and_revived_with_it(
    declare: Declare, make_worker: MakeWorker, moments: Callable[[int], list[Any]]
) -> None:
    body, told = Body(1), []

    def handle(payload: Any, ctx: JobContext) -> Any:
        found = ctx.step("first", body)
        if job_of(ctx.job_id).revivals == 0:
            cancel_inside(ctx.job_id)
        try:
            ctx.step("second", Body(2))
            ctx.step("third", Body(3))
        except RunCanceled as error:
            told.append((error.run_id, error.reason))
            raise
        return found

    job_id = declare("t.follow", handle).enqueue()
    seen = moments(job_id)
    worker = make_worker()
    worker.run_once()
    run_id = f"job:{job_id}"
    assert both(job_id) == ("canceled", "canceled")
    assert [at[0] for at in seen][-2:] == ["cancel.updated", "cancel.committed"]
    assert [at[1:] for at in seen][-2:] == [("running", "running"), ("canceled", "canceled")]
    assert [(run, bool(reason)) for run, reason in told] in ([(run_id, False)], [(run_id, True)])
    assert keys_of(run_id) == ["first", "second"]  # the fence of the second told of it

    retry_job(job_id)
    assert both(job_id) == ("ready", "running")
    row = run_row(run_id)
    assert (row.cancel_requested_at, row.cancel_reason, row.finished_at) == (None, "", None)
    worker.run_until_idle()
    assert both(job_id) == ("succeeded", "completed")
    assert (body.count, job_of(job_id).result) == (1, 1)


@pytest.mark.row("runs", "D57")
@pytest.mark.parametrize("act", [cancel_job, discard_job], ids=["cancel", "discard"])
def test_a_job_canceled_between_two_attempts_takes_its_run_along(
    declare: Declare, make_worker: MakeWorker, act: Callable[..., Any]
) -> None:
    def handle(payload: Any, ctx: JobContext) -> None:
        ctx.step("s", Body())
        raise OSError

    job_id = declare("t.follow", handle, retry_delay=3600).enqueue()
    make_worker().run_once()
    if act is discard_job:
        Job.objects.update(state="dead", finished_at=NOON)
        Run.objects.update(state="failed", finished_at=NOON)
    assert act(job_id, "no more")
    assert both(job_id) == ("canceled", "canceled")


@pytest.mark.row("runs", "D57")
@pytest.mark.parametrize(
    ("attempts", "canceled", "states"),
    [
        (2, False, ("ready", "running")),
        (1, False, ("dead", "failed")),
        (2, True, ("canceled", "canceled")),
    ],
    ids=["again", "spent", "canceled"],
)
def test_the_run_of_a_lost_job_follows_it_when_it_is_reaped(
    declare: Declare, make_worker: MakeWorker, aside: Aside, attempts: int, canceled: bool,
    states: tuple[str, str],
) -> None:  # fmt: skip
    gate = s.Gate(first_only=True)

    def handle(payload: Any, ctx: JobContext) -> None:
        ctx.step("s", Body())
        gate()

    job_id = declare("t.follow", handle, max_attempts=attempts).enqueue()
    lost = aside(make_worker(ttl=s.LONG).run_once)
    gate.wait_reached()
    if canceled:
        assert cancel_job(job_id, "")
    other = make_worker(ttl=s.LONG, kinds=[])
    with s.later(s.LONG + 1):
        other.run_once()
        assert both(job_id) == states
    gate.open()
    lost.result()
    assert both(job_id) == states  # the old holder writes nothing


@pytest.mark.row("runs", "D57")
def test_settling_many_jobs_moves_only_the_runs_that_were_entered(
    declare: Declare, make_worker: MakeWorker
) -> None:
    def handle(payload: int, ctx: JobContext) -> None:
        if payload % 2:
            ctx.step("s", Body())
        if payload % 3 == 0:
            raise PermanentFailure

    kind = declare("t.many", handle)
    ids = [kind.enqueue(n) for n in range(12)]
    make_worker(concurrency=12).run_until_idle()
    expected = {
        f"job:{job_id}": "failed" if n % 3 == 0 else "completed"
        for n, job_id in enumerate(ids)
        if n % 2
    }
    assert {run.run_id: run.state for run in Run.objects.all()} == expected


@pytest.mark.row("runs", "D58", "D72")
@pytest.mark.parametrize("why", ["lease-lost", "timeout"])
@pytest.mark.parametrize("catching", [False, True])
def test_a_run_that_was_stopped_has_not_failed(why: Any, catching: bool) -> None:
    signal, body = Revocation(), Body()

    def work(run: RunContext) -> None:
        run.step("first", body)
        signal.revoke(why)
        assert run.signal.why == why
        if catching:
            raise ValueError("it was told to stop")
        run.step("second", body)

    with pytest.raises(ValueError if catching else ExecutionRevoked):
        run_durable(RUN, work, signal=signal)
    row = run_row()
    assert (row.state, row.error, row.finished_at, row.lock_token) == ("running", "", None, None)
    assert body.count == 1
    assert run_durable(RUN, lambda run: run.step("first", body)) is None
    assert (body.count, state()) == (1, "completed")


@pytest.mark.row("runs", "D58")
def test_a_revoked_signal_keeps_a_run_from_being_entered() -> None:
    signal, body = Revocation(), Body()
    signal.revoke("timeout")
    with pytest.raises(ExecutionRevoked, match="timeout"):
        run_durable(RUN, body, signal=signal)
    assert (body.count, Run.objects.count()) == (0, 0)


# cancel


@pytest.mark.row("runs", "D59")
@pytest.mark.parametrize("before", ["running", "failed"])
def test_an_idle_run_is_canceled_at_once(before: str) -> None:
    make_run(state=before, finished_at=NOON if before == "failed" else None)
    assert cancel_run(RUN, "wrong customer") is True
    row = run_row()
    assert (row.state, row.cancel_reason) == ("canceled", "wrong customer")
    assert row.finished_at is not None
    assert row.cancel_requested_at is not None
    body, columns = Body(), run_columns()
    for _ in range(2):
        with pytest.raises(RunCanceled) as caught:
            run_durable(RUN, body)
        assert (caught.value.run_id, caught.value.reason) == (RUN, "wrong customer")
        assert caught.value.why == "canceled"
    assert (body.count, run_columns()) == (0, columns)


@pytest.mark.row("runs", "D59")
def test_the_steps_of_a_canceled_run_stay_readable() -> None:
    executor().step("s", Body(1))
    assert cancel_run(RUN)
    assert [(step.key, step.output) for step in list_steps(RUN)] == [("s", 1)]
    with pytest.raises(RunCanceled) as caught:
        run_durable(RUN, Body())
    assert caught.value.reason == ""


@pytest.mark.row("runs", "D60")
@pytest.mark.parametrize("learns", ["renewal", "write"])
def test_a_live_run_learns_of_its_cancel_and_stops_at_the_next_step(learns: str) -> None:
    body = Body()

    def work(run: RunContext) -> None:
        assert cancel_run(RUN, "enough") is True
        row = run_row()
        assert (row.state, row.finished_at) == ("running", None)
        assert row.lock_token is not None
        if learns == "renewal":
            standing._hearts._beating["default"][0].beat()
        else:
            run.step("first", body)
        assert run.signal.why == "canceled"
        run.step("second", body)

    with pytest.raises(RunCanceled, match="enough"):
        run_durable(RUN, work)
    row = run_row()
    assert (row.state, row.cancel_reason, row.lock_token) == ("canceled", "enough", None)
    assert (body.count, keys_of()) == (
        (0, []) if learns == "renewal" else (1, ["first"])
    )  # fmt: skip


@pytest.mark.row("runs", "D60")
@pytest.mark.usefixtures("quick_beats")
def test_a_live_run_is_told_by_a_renewal_of_its_lock() -> None:
    def work(run: RunContext) -> None:
        assert cancel_run(RUN)
        assert run.signal.wait(20)
        run.step("s", Body())

    with pytest.raises(RunCanceled):
        run_durable(RUN, work)
    assert state() == "canceled"


@pytest.mark.row("runs", "D60", "D64")
@pytest.mark.parametrize("ending", ["returns", "raises"])
def test_a_live_run_that_ends_without_having_learned_is_canceled_all_the_same(ending: str) -> None:
    def work(run: RunContext) -> str:
        assert cancel_run(RUN, "enough")
        if ending == "raises":
            raise OSError("cut off")
        return "result"

    with pytest.raises(OSError if ending == "raises" else RunCanceled):
        run_durable(RUN, work)
    row = run_row()
    assert (row.state, row.result, row.cancel_reason) == ("canceled", None, "enough")


@pytest.mark.row("runs", "D61")
def test_what_is_over_or_unknown_is_not_canceled() -> None:
    run_durable("completed", Body(1))
    make_run("canceled", state="canceled", finished_at=NOON, cancel_reason="first")
    for run_id in ("completed", "canceled"):
        before = run_columns(run_id)
        assert cancel_run(run_id, "again") is False
        assert run_columns(run_id) == before
    for run_id in ("unknown", "", "COMPLETED", "completed ", "job:0", "job:x", "sched:1:1", "wf:1"):
        assert cancel_run(run_id) is False
    assert cancel_run("job:" + "9" * 30) is False
    assert Run.objects.count() == 2


@pytest.mark.row("runs", "D61")
def test_the_first_reason_stays() -> None:
    make_run(lock_token="f" * 32, lock_holder="x", lock_expires_at=NOON.replace(year=2999))
    assert cancel_run(RUN, "first") is True
    at = run_row().cancel_requested_at
    assert cancel_run(RUN, "second") is True
    assert (run_row().cancel_reason, run_row().cancel_requested_at) == ("first", at)
    assert state() == "running"


@pytest.mark.row("runs", "D61")
@pytest.mark.parametrize(
    ("reason", "kept"),
    [("x" * 600, "x" * 500), ("😀" * 501, "😀" * 500), ("a\0b\ud800", "a\ufffdb?"), ("", "")],
    ids=["long", "wide", "hostile", "none"],
)
def test_a_reason_is_kept_as_far_as_it_can_be(reason: str, kept: str) -> None:
    make_run()
    assert cancel_run(RUN, reason)
    assert run_row().cancel_reason == kept


@pytest.mark.row("runs", "D62")
def test_a_run_whose_holder_died_after_the_flag_is_canceled_by_the_next_entry(
    frozen: clock.Override,
) -> None:
    make_run(lock_token="f" * 32, lock_holder="x", lock_expires_at=NOON + timedelta(seconds=30))
    assert cancel_run(RUN, "enough")
    assert state() == "running"
    with pytest.raises(RunBusy):
        run_durable(RUN, Body())
    frozen.advance(timedelta(seconds=30))
    body = Body()
    with pytest.raises(RunCanceled, match="enough"):
        run_durable(RUN, body)
    row = run_row()
    assert (row.state, row.lock_token, row.lock_holder, row.entries) == ("canceled", None, None, 1)
    assert (body.count, row.finished_at) == (0, NOON + timedelta(seconds=30))


@pytest.mark.row("runs", "D62")
def test_a_cancel_after_the_holders_lock_has_ended_is_final_at_once(frozen: clock.Override) -> None:
    make_run(lock_token="f" * 32, lock_holder="x", lock_expires_at=NOON)
    assert cancel_run(RUN)
    row = run_row()
    assert (row.state, row.lock_token, row.lock_holder, row.lock_expires_at) == (
        "canceled", None, None, None,
    )  # fmt: skip


@pytest.mark.row("runs", "D63")
@pytest.mark.parametrize("entered", [True, False])
def test_canceling_a_jobs_run_cancels_the_job(
    declare: Declare, make_worker: MakeWorker, entered: bool
) -> None:
    def handle(payload: Any, ctx: JobContext) -> None:
        if entered:
            ctx.step("s", Body())
        raise OSError

    job_id = declare("t.cancel", handle, retry_delay=3600).enqueue(org="acme")
    make_worker().run_once()
    assert cancel_run(f"job:{job_id}", "wrong customer") is True
    job = job_of(job_id)
    assert (job.state, job.cancel_reason) == ("canceled", "wrong customer")
    if entered:
        row = run_row(f"job:{job_id}")
        assert (row.state, row.cancel_reason) == ("canceled", "wrong customer")
        assert row.cancel_requested_at is not None
    else:
        assert Run.objects.count() == 0
    assert cancel_run(f"job:{job_id}") is False
    retry_job(job_id)
    if entered:
        assert (state(f"job:{job_id}"), run_row(f"job:{job_id}").cancel_reason) == ("running", "")


@pytest.mark.row("runs", "D63")
def test_canceling_a_running_jobs_run_stops_its_handler_at_the_next_step(
    declare: Declare, make_worker: MakeWorker
) -> None:
    told: list[Any] = []

    def handle(payload: Any, ctx: JobContext) -> None:
        ctx.step("first", Body())
        assert cancel_run(ctx.run_id, "enough")
        assert both(ctx.job_id) == ("running", "running")
        ctx.step("second", Body())
        try:
            ctx.step("third", Body())
        except RunCanceled as error:
            told.append((error.run_id, error.reason))
            raise

    job_id = declare("t.cancel", handle).enqueue()
    make_worker().run_once()
    assert told == [(f"job:{job_id}", "enough")]
    assert both(job_id) == ("canceled", "canceled")
    assert keys_of(f"job:{job_id}") == ["first", "second"]


@pytest.mark.row("runs", "D63")
def test_the_run_of_a_key_is_found_in_its_organization(
    declare: Declare, make_worker: MakeWorker
) -> None:
    """`sched:` and `wf:` runs are found by their job's key."""

    def handle(payload: Any, ctx: JobContext) -> None:
        ctx.step("s", Body())
        raise OSError

    kind = declare("t.slot", handle, retry_delay=3600)
    job_id, other = kind.enqueue(org="acme"), kind.enqueue(org="other", delay=3600)
    for at, org in ((job_id, "acme"), (other, "other")):  # as the scheduler will write them
        Job.objects.filter(id=at).update(run_id="sched:7:1", dedup=dedup(org, "sched:7:1"))
    make_worker().run_once()
    assert get_run("sched:7:1").org == "acme"  # type: ignore[union-attr]
    assert cancel_run("sched:7:1", "enough") is True
    assert (state_of(job_id), state("sched:7:1"), state_of(other)) == (
        "canceled", "canceled", "scheduled",
    )  # fmt: skip


@pytest.mark.row("runs", "D64")
def test_a_late_completion_never_relabels_a_canceled_run() -> None:
    def work(run: RunContext) -> str:
        Run.objects.update(lock_expires_at=run_row().created_at)  # it was taken for dead
        assert cancel_run(RUN, "enough")
        assert state() == "canceled"
        return "late"

    with pytest.raises(StaleClaim):
        run_durable(RUN, work)
    row = run_row()
    assert (row.state, row.result, row.cancel_reason) == ("canceled", None, "enough")

    def fails_late(run: RunContext) -> None:
        work(run)
        raise OSError("late")

    make_run("r2")
    Run.objects.filter(run_id="r2").update(state="canceled", finished_at=NOON)
    with pytest.raises(RunCanceled):
        run_durable("r2", fails_late)
    assert state("r2") == "canceled"


@pytest.mark.row("runs", "D64")
def test_a_job_that_completes_late_leaves_its_canceled_run_alone(
    declare: Declare, make_worker: MakeWorker
) -> None:
    def handle(payload: Any, ctx: JobContext) -> str:
        ctx.step("s", Body())
        cancel_inside(ctx.job_id)
        return "done"

    job_id = declare("t.late", handle).enqueue()
    worker: Worker = make_worker()
    worker.run_once()
    assert both(job_id) == ("canceled", "canceled")
    assert job_of(job_id).result is None


# the same for coroutines


@pytest.mark.row("runs", "D55", "D56", "D59")
def test_a_coroutine_function_has_the_same_outcomes() -> None:
    calls: list[int] = []

    async def work(run: Any, add: int) -> int:
        calls.append(run.attempt)
        value = await run.step("s", lambda: 4)
        if run.attempt == 1:
            raise OSError("cut off")
        return int(value) + add

    async def program() -> list[Any]:
        with pytest.raises(OSError, match="cut off"):
            await run_durable(RUN, work, 1)
        found = [await run_durable(RUN, work, 1), await run_durable(RUN, work, add=9)]
        with pytest.raises(RunCanceled):
            await run_durable("r2", work, 1)
        with pytest.raises(InvalidPayload):
            run_durable("r3", work, 1, input={1})  # at the call, not when awaited
        return found

    make_run("r2", state="canceled", finished_at=NOON)
    assert async_to_sync(program)() == [5, 5]
    assert calls == [1, 2]
    assert standing._hearts._beating == {}
