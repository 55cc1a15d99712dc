"""Side effects: claimed before they happen, never repeated while nobody knows (D16-D28)."""

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync

from gnl_django import (
    ExecutionRevoked,
    InvalidPayload,
    JobContext,
    StaleClaim,
    StepInFlight,
    StepInfo,
    StepUnresolved,
    current_step,
    get_run,
    resolve_step,
    retry_job,
    run_durable,
)
from gnl_django.core import clock
from gnl_django.core.db import now
from gnl_django.core.revocation import Revocation
from gnl_django.models import Step
from gnl_django.runs import keeper
from tests.conformance.conftest import Aside, Declare, FailPoint, MakeWorker
from tests.conformance.helpers import DEADLINE, job_of, outcomes_of, state_of
from tests.conformance.support_runs import (
    RUN,
    Body,
    Crash,
    async_executor,
    claimed_elsewhere,
    crash_at,
    crashes,
    executor,
    step_row,
    steps_of,
)
from tests.support import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

TTL = 60
TICK = timedelta(microseconds=1)
JUST_BEFORE = timedelta(seconds=TTL) - TICK
EXACTLY = timedelta(seconds=TTL)


def done(output: Any) -> Callable[[StepInfo], Any]:
    return lambda info: {"done": True, "output": output}


def not_done(info: StepInfo) -> Any:
    return {"done": False}


# the table of R17


@pytest.mark.row("runs", "D16")
def test_no_row_is_claimed_run_and_recorded(frozen: clock.Override) -> None:
    seen: list[Any] = []

    def body() -> str:
        row = step_row("pay")
        seen.append((row.state, row.claimed_at, row.claim_ttl, len(row.claim_token), row.output))
        return "paid"

    assert executor().step("pay", body, side_effect=True) == "paid"
    assert seen == [("claimed", step_row("pay").claimed_at, TTL, 32, None)]
    assert steps_of() == [("pay", "done", "paid")]


@pytest.mark.row("runs", "D16")
@pytest.mark.parametrize("recover", [None, done("guess")], ids=["", "recover"])
def test_done_is_returned(recover: Any) -> None:
    executor().step("pay", Body("paid"), side_effect=True)
    body = Body("again")
    assert executor().step("pay", body, side_effect=True, recover=recover) == "paid"
    assert body.count == 0


@pytest.mark.row("runs", "D16")
@pytest.mark.parametrize("age", [timedelta(0), JUST_BEFORE, EXACTLY, timedelta(days=9)], ids=str)
def test_a_released_claim_is_adopted_whatever_its_age(age: timedelta) -> None:
    old = claimed_elsewhere("pay", state="released", age=age)
    assert executor().step("pay", Body("paid"), side_effect=True) == "paid"
    row = step_row("pay")
    assert (row.state, row.output) == ("done", "paid")
    assert row.claim_token != old


@pytest.mark.row("runs", "D16")
@pytest.mark.parametrize("recover", [None, done("guess"), not_done], ids=["", "done", "not done"])
@pytest.mark.parametrize("ttl", [1, TTL, 86_400])
def test_a_claim_younger_than_its_ttl_is_in_flight(
    frozen: clock.Override, recover: Any, ttl: int
) -> None:
    age = timedelta(seconds=ttl) - TICK
    claimed_elsewhere("pay", ttl=ttl, age=age)
    before, body = Step.objects.values().get(), Body()
    with pytest.raises(StepInFlight) as caught:
        executor().step("pay", body, side_effect=True, recover=recover, claim_ttl=5)
    error = caught.value
    assert (error.key, error.claim_ttl) == ("pay", ttl)
    assert error.age == pytest.approx(age.total_seconds())
    assert 0 < error.retry_in < 2e-6
    assert (body.count, Step.objects.values().get()) == (0, before)


@pytest.mark.row("runs", "D16", "D20")
@pytest.mark.parametrize(
    ("state", "age"), [("claimed", EXACTLY), ("failed", timedelta(0)), ("failed", JUST_BEFORE)]
)
def test_an_abandoned_claim_without_recover_is_not_guessed(
    frozen: clock.Override, state: str, age: timedelta
) -> None:
    claimed_elsewhere("pay", state=state, age=age)
    before, body = Step.objects.values().get(), Body()
    with pytest.raises(StepUnresolved, match="resolve_step") as caught:
        executor().step("pay", body, side_effect=True)
    assert (caught.value.key, caught.value.state) == ("pay", state)
    assert (body.count, Step.objects.values().get()) == (0, before)


@pytest.mark.row("runs", "D16")
@pytest.mark.parametrize(("state", "age"), [("claimed", EXACTLY), ("failed", timedelta(0))])
def test_recover_may_say_that_it_was_done(
    frozen: clock.Override, state: str, age: timedelta
) -> None:
    claimed_elsewhere("pay", state=state, age=age)
    asked: list[StepInfo] = []
    body = Body()

    def recover(info: StepInfo) -> Any:
        asked.append(info)
        return {"done": True, "output": ["paid", 7]}

    got = executor().step("pay", body, side_effect=True, recover=recover)
    assert got == ["paid", 7]
    assert asked == [StepInfo("pay", f"{RUN}/pay")]
    assert (body.count, steps_of()) == (0, [("pay", "done", ["paid", 7])])
    assert step_row("pay").error == ""


@pytest.mark.row("runs", "D16", "D18")
@pytest.mark.parametrize(("state", "age"), [("claimed", EXACTLY), ("failed", timedelta(0))])
def test_recover_may_say_that_it_was_not_done(
    frozen: clock.Override, state: str, age: timedelta
) -> None:
    old = claimed_elsewhere("pay", state=state, age=age, ttl=TTL)
    body = Body("paid")
    run = executor()
    assert run.step("pay", body, side_effect=True, recover=not_done, claim_ttl=7) == "paid"
    row = step_row("pay")
    assert (body.count, row.state, row.output, row.claim_ttl) == (1, "done", "paid", 7)
    assert row.claim_token != old


@pytest.mark.row("runs", "D16")
def test_the_age_is_the_databases_not_this_processs(frozen: clock.Override) -> None:
    claimed_elsewhere("pay", age=JUST_BEFORE)
    with pytest.raises(StepInFlight):
        executor().step("pay", Body(), side_effect=True, recover=not_done)
    frozen.advance(TICK)
    assert executor().step("pay", Body("paid"), side_effect=True, recover=not_done) == "paid"


@pytest.mark.row("runs", "D17")
def test_a_body_that_raised_is_settled_by_the_next_entrys_recover(
    declare: Declare, make_worker: MakeWorker
) -> None:
    body = Body(OSError("cut off"))

    def handle(payload: Any, ctx: JobContext) -> Any:
        return ctx.step("pay", body, side_effect=True, recover=done("receipt"))

    job_id = declare("t.pay", handle, retry_delay=0).enqueue()
    worker = make_worker()
    assert worker.run_once() == 1
    row = step_row("pay", f"job:{job_id}")
    assert (row.state, row.error, row.output) == ("failed", "OSError: cut off", None)
    worker.run_until_idle()
    assert (job_of(job_id).state, job_of(job_id).result) == ("succeeded", "receipt")
    assert body.count == 1


@pytest.mark.row("runs", "D18")
def test_a_failed_body_that_did_nothing_runs_once_more() -> None:
    bodies = [Body(OSError("refused")), Body("paid")]
    with pytest.raises(OSError, match="refused"):
        executor().step("pay", bodies[0], side_effect=True, recover=not_done)
    assert executor().step("pay", bodies[1], side_effect=True, recover=not_done) == "paid"
    assert [body.count for body in bodies] == [1, 1]


ANSWERS = [
    None,
    True,
    "done",
    {},
    {"done": True},
    {"done": 1, "output": 2},
    {"done": None},
    {"done": True, "output": 1, "more": 2},
    {"done": False, "more": 2},
    [("done", False)],
]


@pytest.mark.row("runs", "D19")
@pytest.mark.parametrize("answer", ANSWERS, ids=repr)
def test_any_other_answer_of_recover_is_a_type_error(answer: Any) -> None:
    claimed_elsewhere("pay", state="failed")
    before, body = Step.objects.values().get(), Body()
    with pytest.raises(TypeError, match="recover of step 'pay' must return"):
        executor().step("pay", body, side_effect=True, recover=Body(answer))
    assert (body.count, Step.objects.values().get()) == (0, before)


@pytest.mark.row("runs", "D19")
def test_a_recover_that_raises_or_answers_with_what_is_no_json_changes_nothing() -> None:
    claimed_elsewhere("pay", state="failed")
    before, body = Step.objects.values().get(), Body()
    with pytest.raises(LookupError):
        executor().step("pay", body, side_effect=True, recover=Body(LookupError()))
    with pytest.raises(InvalidPayload):
        executor().step("pay", body, side_effect=True, recover=done({1, 2}))
    assert (body.count, Step.objects.values().get()) == (0, before)


@pytest.mark.row("runs", "D20")
def test_a_job_that_cannot_tell_is_dead_and_waits_for_a_decision(
    declare: Declare, make_worker: MakeWorker, failpoint: FailPoint
) -> None:
    body = Body("paid")

    def handle(payload: Any, ctx: JobContext) -> Any:
        return ctx.step("pay", body, side_effect=True, claim_ttl=1)

    job_id = declare("t.pay", handle, retry_delay=0, max_attempts=9).enqueue()
    worker = make_worker()
    crash_at(failpoint, "step.effect_done")
    assert worker.run_once() == 1
    assert step_row("pay", f"job:{job_id}").state == "claimed"
    Step.objects.update(claimed_at=step_row("pay", f"job:{job_id}").claimed_at - EXACTLY)
    assert worker.run_once() == 1
    job = job_of(job_id)
    assert (job.state, job.attempt) == ("dead", 2)
    assert job.error_class == "gnl_django.errors.StepUnresolved"
    assert "decide" in job.error
    assert body.count == 1
    assert get_run(f"job:{job_id}").state == "failed"  # type: ignore[union-attr]


@pytest.mark.row("runs", "D21")
def test_of_two_that_adopt_at_once_one_runs_the_body(aside: Aside) -> None:
    claimed_elsewhere("pay", state="failed")
    both, ran = threading.Barrier(2), threading.Event()
    bodies: list[int] = []

    def recover(info: StepInfo) -> Any:
        if not ran.is_set():
            both.wait(DEADLINE)
        return {"done": False}

    def enter() -> Any:
        run = executor()

        def body() -> str:
            bodies.append(1)
            ran.set()
            return "paid"

        try:
            return run.step("pay", body, side_effect=True, recover=recover)
        except StepInFlight:
            return "in flight"

    calls = [aside(enter), aside(enter)]
    found = sorted(call.result() for call in calls)
    assert found in (["in flight", "paid"], ["paid", "paid"])
    assert bodies == [1]


@pytest.mark.row("runs", "D21", "D51")
@pytest.mark.parametrize(
    ("other", "expected"),
    [
        pytest.param("claimed", StepInFlight, id="who is in it"),
        pytest.param("done", "theirs", id="who has done it"),
        pytest.param("released", "ours", id="who gave it back"),
    ],
)
@pytest.mark.parametrize("answer", [not_done, done("recovered")], ids=["not done", "done"])
def test_recovery_counts_only_when_its_claim_was_won(
    other: str, expected: Any, answer: Any
) -> None:
    claimed_elsewhere("pay", state="failed")
    body = Body("ours")

    def recover(info: StepInfo) -> Any:
        """Meanwhile somebody else adopts the step."""
        changes: dict[str, Any] = {"done": {"output": "theirs"}}.get(other, {})
        now = step_row("pay").started_at
        Step.objects.update(
            state=other,
            claim_token="f" * 32,
            finished_at=now if other == "done" else None,
            **changes,
        )
        return answer(info)

    run = executor()
    if isinstance(expected, str):
        assert run.step("pay", body, side_effect=True, recover=recover) == expected
    else:
        with pytest.raises(expected):
            run.step("pay", body, side_effect=True, recover=recover)
    assert body.count == (1 if expected == "ours" else 0)


@pytest.mark.row("runs", "D22")
def test_a_long_body_stays_in_flight_for_as_long_as_it_lives(
    frozen: clock.Override, monkeypatch: pytest.MonkeyPatch, aside: Aside
) -> None:
    monkeypatch.setattr(keeper, "RENEWALS_PER_TTL", 50)
    refused: list[float] = []

    def body() -> str:
        began = step_row("pay").claimed_at
        for half in range(1, 7):  # three times its claim_ttl
            frozen.advance(timedelta(seconds=0.5))
            due = began + half * timedelta(seconds=0.5)
            wait_until(lambda due=due: step_row("pay").claimed_at == due)
            with pytest.raises(StepInFlight) as caught:
                aside(lambda: executor().step("pay", Body(), side_effect=True)).result()
            refused.append(caught.value.retry_in)
        return "paid"

    assert executor().step("pay", body, side_effect=True, claim_ttl=1) == "paid"
    assert refused == pytest.approx([1.0] * 6)
    assert steps_of() == [("pay", "done", "paid")]
    wait_until(lambda: keeper.keeping.__self__._thread is None)  # type: ignore[attr-defined]


@pytest.mark.row("runs", "D22", "D25")
def test_a_body_longer_than_its_ttl_still_records_when_nobody_took_over(
    frozen: clock.Override,
) -> None:
    def body() -> str:
        frozen.advance(timedelta(hours=1))
        return "late"

    assert executor().step("pay", body, side_effect=True, claim_ttl=1) == "late"
    assert steps_of() == [("pay", "done", "late")]


@pytest.mark.row("runs", "D23")
def test_a_step_in_flight_defers_its_job_until_the_claim_is_old(
    declare: Declare, make_worker: MakeWorker, frozen: clock.Override
) -> None:
    body = Body("paid")

    def handle(payload: Any, ctx: JobContext) -> Any:
        return ctx.step("pay", body, side_effect=True, recover=not_done)

    job_id = declare("t.pay", handle, max_attempts=1).enqueue()
    claimed_elsewhere("pay", run_id=f"job:{job_id}", age=timedelta(seconds=6))
    worker = make_worker()
    assert worker.run_once() == 1
    job = job_of(job_id)
    assert (job.state, job.attempt, job.deferrals) == ("scheduled", 0, 1)
    assert job.run_at - now("default") == timedelta(seconds=54)
    assert get_run(f"job:{job_id}").state == "running"  # type: ignore[union-attr]
    frozen.advance(timedelta(seconds=54))
    assert worker.run_once() == 1
    job = job_of(job_id)
    assert (job.state, job.attempt, job.result, body.count) == ("succeeded", 1, "paid", 1)


@pytest.mark.row("runs", "D24")
@pytest.mark.parametrize("adopting", [False, True])
def test_a_claim_revoked_before_its_body_is_released(failpoint: FailPoint, adopting: bool) -> None:
    if adopting:
        claimed_elsewhere("pay", state="failed")
    signal, body = Revocation(), Body("paid")
    failpoint("step.claimed", lambda: signal.revoke("timeout"))
    run = executor(signal=signal)
    with pytest.raises(ExecutionRevoked, match="timeout"):
        run.step("pay", body, side_effect=True, recover=not_done)
    assert (body.count, step_row("pay").state, step_row("pay").error) == (0, "released", "")
    failpoint("step.claimed", lambda: None)
    assert executor().step("pay", body, side_effect=True) == "paid"
    assert body.count == 1


@pytest.mark.row("runs", "D24")
def test_a_step_asked_for_after_the_revocation_claims_nothing() -> None:
    signal, body = Revocation(), Body()
    run = executor(signal=signal)
    signal.revoke("lease-lost")
    for how in ({}, {"side_effect": True}, {"atomic": True}):
        with pytest.raises(ExecutionRevoked, match="lease-lost"):
            run.step("pay", body, **how)
    assert (body.count, steps_of()) == (0, [])


@pytest.mark.row("runs", "D24")
def test_a_body_revoked_while_it_ran_is_failed_when_it_raises_and_done_when_it_returns() -> None:
    signal = Revocation()

    def stops() -> None:
        signal.revoke("timeout")
        signal.raise_if_revoked()

    with pytest.raises(ExecutionRevoked):
        executor(signal=signal).step("pay", stops, side_effect=True)
    assert step_row("pay").state == "failed"

    other = Revocation()
    run = executor("r2", signal=other)
    assert run.step("pay", lambda: other.revoke("timeout"), side_effect=True) is True
    assert steps_of("r2") == [("pay", "done", True)]


@pytest.mark.row("runs", "D25")
def test_the_old_holder_of_an_adopted_claim_records_nothing() -> None:
    old = executor()

    def slow() -> str:
        Step.objects.update(claimed_at=step_row("pay").claimed_at - EXACTLY)
        run = executor()
        assert run.step("pay", Body("new"), side_effect=True, recover=not_done) == "new"
        return "old"

    with pytest.raises(StaleClaim):
        old.step("pay", slow, side_effect=True)
    assert old.signal.why == "lease-lost"
    assert steps_of() == [("pay", "done", "new")]
    with pytest.raises(ExecutionRevoked):
        old.step("next", Body())


@pytest.mark.row("runs", "D25")
def test_the_old_holder_that_fails_does_not_spoil_the_new_ones_claim() -> None:
    old, other = executor(), {}

    def slow() -> None:
        Step.objects.update(claimed_at=step_row("pay").claimed_at - EXACTLY)

        def quick() -> str:
            other["token"] = step_row("pay").claim_token
            return "new"

        executor().step("pay", quick, side_effect=True, recover=not_done)
        raise OSError("late")

    with pytest.raises(OSError, match="late"):
        old.step("pay", slow, side_effect=True)
    row = step_row("pay")
    assert (row.state, row.output, row.claim_token) == ("done", "new", other["token"])


@pytest.mark.row("runs", "D26")
@pytest.mark.parametrize(
    ("state", "age"),
    [("failed", timedelta(0)), ("claimed", EXACTLY), ("claimed", timedelta(days=3))],
    ids=str,
)
def test_a_person_decides_an_abandoned_step(
    frozen: clock.Override, state: str, age: timedelta
) -> None:
    for run_id in ("happened", "did not"):
        claimed_elsewhere("pay", run_id=run_id, state=state, age=age)
    assert resolve_step("happened", "pay", output={"receipt": None}) is True
    assert resolve_step("did not", "pay", rerun=True) is True
    body = Body("paid")
    assert executor("happened").step("pay", body, side_effect=True) == {"receipt": None}
    assert body.count == 0
    assert step_row("pay", "did not").state == "released"
    assert executor("did not").step("pay", body, side_effect=True) == "paid"
    assert body.count == 1
    for run_id in ("happened", "did not"):
        assert resolve_step(run_id, "pay", rerun=True) is False
        assert resolve_step(run_id, "pay", output=1) is False


@pytest.mark.row("runs", "D26")
def test_what_is_not_to_be_decided_is_left_alone(frozen: clock.Override) -> None:
    claimed_elsewhere("live", age=JUST_BEFORE, ordinal=3)
    claimed_elsewhere("given back", state="released", age=EXACTLY, ordinal=4)
    run = executor("others")
    run.step("plain", Body(1))
    run.step("atomic", Body(1), atomic=True)
    before = list(Step.objects.order_by("id").values())
    for run_id, key in [
        (RUN, "live"), (RUN, "given back"), ("others", "plain"), ("others", "atomic"),
        (RUN, "unknown"), ("unknown", "live"), (RUN, "LIVE"), (RUN, "live "), (RUN, ""),
    ]:  # fmt: skip
        assert resolve_step(run_id, key, output=1) is False
        assert resolve_step(run_id, key, rerun=True) is False
    assert list(Step.objects.order_by("id").values()) == before


@pytest.mark.row("runs", "D26")
def test_exactly_one_decision_is_taken() -> None:
    claimed_elsewhere("pay", state="failed")
    for wrong in ({}, {"output": 1, "rerun": True}, {"rerun": False}, {"output": None, "rerun": 1}):
        with pytest.raises(ValueError, match="either output"):
            resolve_step(RUN, "pay", **wrong)
    with pytest.raises(InvalidPayload):
        resolve_step(RUN, "pay", output={1})
    assert step_row("pay").state == "failed"
    assert resolve_step(RUN, "pay", output=None) is True
    assert steps_of() == [("pay", "done", None)]


@pytest.mark.row("runs", "D27")
def test_the_idempotency_key_is_the_same_over_attempts_and_revivals(
    declare: Declare, make_worker: MakeWorker
) -> None:
    told: list[Any] = []

    def body() -> None:
        told.append(current_step())
        raise OSError

    def handle(payload: Any, ctx: JobContext) -> None:
        assert current_step() is None
        ctx.step("pay", body, side_effect=True, recover=lambda info: told.append(info) or
                 {"done": False})  # fmt: skip

    kind = declare("t.pay", handle, retry_delay=0, max_attempts=2)
    job_id = kind.enqueue()
    worker = make_worker()
    worker.run_until_idle()
    assert state_of(job_id) == "dead"
    retry_job(job_id)
    worker.run_until_idle()
    assert outcomes_of(job_id) == ["failed"] * 4
    assert len(told) == 7
    assert set(told) == {StepInfo("pay", f"job:{job_id}/pay")}


@pytest.mark.row("runs", "D28")
def test_calling_again_after_an_error_is_another_step() -> None:
    first, second = Body(OSError("unsure")), Body("paid")
    told: list[Any] = []

    def work(run: Any) -> Any:
        try:
            return run.step("pay", first, side_effect=True)
        except OSError:
            return run.step(
                "pay", lambda: told.append(current_step()) or second(), side_effect=True
            )

    assert run_durable(RUN, work) == "paid"
    assert (first.count, second.count) == (1, 1)
    assert steps_of() == [("pay", "failed", None), ("pay#2", "done", "paid")]
    assert told == [StepInfo("pay#2", f"{RUN}/pay#2")]


# crashes (what SIGKILL itself does: tests of another file)


@pytest.mark.row("runs", "D16", "D88")
@pytest.mark.parametrize(
    ("point", "state", "bodies"),
    [
        ("step.begin", None, 0),
        ("step.claimed", "claimed", 0),
        ("step.effect_done", "claimed", 1),
        ("step.journaled", "claimed", 1),
        ("step.committed", "done", 1),
    ],
)
def test_where_it_stops_decides_what_the_journal_says(
    failpoint: FailPoint, point: str, state: str | None, bodies: int
) -> None:
    body = Body("paid")
    crash_at(failpoint, point)
    with crashes():
        executor().step("pay", body, side_effect=True)
    assert [row[1] for row in steps_of()] == ([] if state is None else [state])
    assert body.count == bodies
    run = executor()
    if state == "claimed":
        with pytest.raises(StepInFlight):
            run.step("pay", body, side_effect=True)
        Step.objects.update(claimed_at=step_row("pay").claimed_at - EXACTLY)
        with pytest.raises(StepUnresolved):
            executor().step("pay", body, side_effect=True)
        assert body.count == bodies
    else:
        assert run.step("pay", body, side_effect=True) == "paid"
        assert body.count == 1


# a recorded step that is called in another mode


@pytest.mark.row("runs", "D16")
@pytest.mark.parametrize("how", [{}, {"atomic": True}], ids=["plain", "atomic"])
def test_a_claim_is_heeded_whatever_mode_it_is_called_in_now(how: dict[str, bool]) -> None:
    claimed_elsewhere("pay", state="failed")
    body = Body("again")
    with pytest.raises(StepUnresolved):
        executor().step("pay", body, **how)
    assert resolve_step(RUN, "pay", rerun=True)
    assert executor().step("pay", body, **how) == "again"
    assert step_row("pay").mode == "side_effect"


@pytest.mark.row("runs", "D16")
@pytest.mark.parametrize("how", [{}, {"atomic": True}], ids=["plain", "atomic"])
def test_a_claim_that_appears_meanwhile_is_heeded_too(how: dict[str, bool]) -> None:
    run = executor()
    body = Body("effect")
    claimed_elsewhere("pay")
    with pytest.raises(StepUnresolved) as caught:
        run.step("pay", body, **how)
    assert caught.value.state == "claimed"
    assert step_row("pay").state == "claimed"


# coroutines


@pytest.mark.row("runs", "D16", "D17")
def test_coroutines_are_claimed_recorded_and_recovered_alike() -> None:
    async def program() -> list[Any]:
        told = []

        async def pay(amount: int) -> Any:
            told.append(current_step())
            if amount < 0:
                raise ValueError(amount)
            return amount

        async def recover(info: StepInfo) -> Any:
            told.append(info)
            return {"done": True, "output": "found"}

        run = await async_executor()
        assert await run.step("a", pay, 5, side_effect=True) == 5
        with pytest.raises(ValueError, match="-1"):
            await run.step("b", pay, -1, side_effect=True)
        again = await async_executor()
        assert await again.step("a", pay, 6, side_effect=True) == 5
        assert await again.step("b", pay, 6, side_effect=True, recover=recover) == "found"
        return told

    assert async_to_sync(program)() == [
        StepInfo("a", f"{RUN}/a"),
        StepInfo("b", f"{RUN}/b"),
        StepInfo("b", f"{RUN}/b"),
    ]
    assert steps_of() == [("a", "done", 5), ("b", "done", "found")]


@pytest.mark.row("runs", "D24")
@pytest.mark.parametrize("adopting", [False, True])
def test_a_task_canceled_while_it_claims_releases_the_claim(
    failpoint: FailPoint, adopting: bool
) -> None:
    """Its body was not begun: nobody has to decide anything."""
    if adopting:
        claimed_elsewhere("pay", state="failed")
    bodies: list[int] = []

    async def pay() -> str:
        bodies.append(1)
        return "paid"

    async def program() -> None:
        loop, begun, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

        def claimed() -> None:
            loop.call_soon_threadsafe(begun.set)
            assert go_on.wait(DEADLINE)

        failpoint("step.claimed", claimed)
        run = await async_executor()
        task = asyncio.ensure_future(run.step("pay", pay, side_effect=True, recover=not_done))
        await begun.wait()
        task.cancel()
        await asyncio.sleep(0)  # it takes notice
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    async_to_sync(program)()
    assert (bodies, [row[1] for row in steps_of()]) == ([], ["released"])
    assert keeper.keeping.__self__._kept == {}  # type: ignore[attr-defined]
    failpoint("step.claimed", lambda: None)
    assert executor().step("pay", Body("paid"), side_effect=True) == "paid"


@pytest.mark.row("runs", "D24")
def test_a_task_canceled_in_its_body_has_failed_and_one_after_its_record_is_done(
    failpoint: FailPoint,
) -> None:
    async def canceled_inside() -> None:
        begun = asyncio.Event()

        async def pay() -> None:
            begun.set()
            await asyncio.Event().wait()

        run = await async_executor()
        task = asyncio.ensure_future(run.step("inside", pay, side_effect=True))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def canceled_after() -> None:
        loop, begun, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

        def committed() -> None:
            loop.call_soon_threadsafe(begun.set)
            assert go_on.wait(DEADLINE)

        failpoint("step.committed", committed)
        run = await async_executor("r2")
        task = asyncio.ensure_future(run.step("after", Body("paid"), side_effect=True))
        await begun.wait()
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    async_to_sync(canceled_inside)()
    assert steps_of() == [("inside", "failed", None)]
    assert "CancelledError" in step_row("inside").error
    async_to_sync(canceled_after)()
    assert steps_of("r2") == [("after", "done", "paid")]


@pytest.mark.row("runs", "D17")
@pytest.mark.parametrize("error", [Crash(), SystemExit(1), GeneratorExit()], ids=repr)
def test_whatever_a_body_raises_its_claim_has_failed(error: BaseException) -> None:
    with pytest.raises(type(error)):
        executor().step("pay", Body(error), side_effect=True)
    assert step_row("pay").state == "failed"
