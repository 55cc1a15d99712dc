"""Random programs of steps, with crashes at random moments, against an interpreter (D86).

A program is executed by the product and by `run_model.Interpreter`; a crash takes the process away
in both at the same moment: at a fail point, or in a body before or after its effect. In the product
it is an exception that nobody catches, after which this process can send no statement, as if it
were killed; the database's clock is in the test's hand. After every act results, errors, the
journal, the run and the multiset of effects must be equal. Runs stand alone or belong to a job.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection, connections
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gnl_django import (
    RunContext,
    StepInfo,
    cancel_run,
    current_step,
    enqueue,
    job,
    resolve_step,
    retry_job,
    run_durable,
)
from gnl_django.core import clock, failpoints
from gnl_django.core.leases import Lease, new_token
from gnl_django.models import Job, Run, Step
from gnl_django.queue import execution, outcomes
from gnl_django.queue.options import kinds
from gnl_django.queue.store import store_for
from gnl_django.queue.store.base import ClaimRequest
from gnl_django.runs.journal.base import Journal
from gnl_django.runs.owners import current
from tests.model.run_model import (
    CLAIM_TTL,
    LEASE,
    Crash,
    Do,
    Fell,
    If,
    Interpreter,
    Loop,
    Program,
    Refused,
    World,
    walk,
)
from tests.model.test_queue_machine import NIGHTLY
from tests.model.test_queue_machine import PROFILE as OF_THE_QUEUE
from tests.run_history import leave_effect

#: An entry is worth several acts of the queue.
PROFILE = settings(OF_THE_QUEUE, stateful_step_count=60 if NIGHTLY else 16)
NOON = datetime(2031, 5, 7, 12, 0, 0, tzinfo=UTC)
KIND = "model.durable"
ALONE = "model run"
#: Where a process may die; `complete.updated` is the settle of a job.
POINTS = (
    "step.begin", "step.claimed", "step.effect_done", "step.journaled", "step.committed",
    "run.final", "complete.updated",
)  # fmt: skip
TABLES = (
    "gnl_django_step", "gnl_django_run", "gnl_django_attempt", "gnl_django_job", "test_effect",
)  # fmt: skip

steps = st.builds(
    Do,
    name=st.sampled_from("aab"),
    mode=st.sampled_from(["plain", "asked", "blind", "atomic"]),
    fall=st.sampled_from(["", "", "", "before", "after"]),
    caught=st.booleans(),
)


def blocks(part: Any) -> Any:
    """Return programs of one to four parts."""
    return st.lists(part, min_size=1, max_size=4).map(tuple)


programs = blocks(
    st.one_of(
        steps,
        steps,
        st.builds(If, odd=blocks(steps), even=blocks(steps)),
        st.builds(Loop, times=st.integers(1, 2), body=blocks(steps)),
    )
)

BEGINNINGS: dict[str, Any] = {
    "owned": st.booleans(),
    "strict": st.sampled_from([True, True, False]),
    "program": programs,
}


class Product:
    """The product under a run of its own, and the world that its bodies change."""

    def __init__(self, *, owned: bool, strict: bool) -> None:
        self.owned, self.strict = owned, strict
        self.world = World()
        self.left = 0
        self.dead = False
        self.job = enqueue(KIND, max_attempts=1000) if owned else 0
        self.run_id = f"job:{self.job}" if owned else ALONE

    def enter(self, program: Program, given: int | None, crash_at: int) -> Any:
        """Enter; return the values, or raise what the product raises."""
        self.left = crash_at
        work = partial(self.owned_by_a_job if self.owned else self.alone, program, given)
        try:
            return work()
        except Crash:
            # The server undoes what a client has not committed, whenever it goes.
            assert not connection.in_atomic_block
            raise
        finally:
            self.dead = False

    def alone(self, program: Program, given: int | None) -> Any:
        return run_durable(ALONE, self.handler, program, input=given, strict=self.strict)

    def owned_by_a_job(self, program: Program, given: int | None) -> Any:
        """Be a worker with one slot, whose thread is this one."""
        store, token = store_for("default"), new_token()
        store.promote()
        store.reap()
        request = ClaimRequest("default", (KIND,), 1, "", True, (), token, LEASE, "w", None)
        rows = store.claim(request).rows
        if not rows:
            raise Refused("nothing")
        kind, lease = kinds.known(KIND), Lease(rows[0].id, token, good_at=0.0)
        assert kind is not None
        attempt = execution.Execution(
            rows[0], lease, kind, execution.Outbox(lambda: None), "default"
        )
        _, context = execution._arguments(attempt)
        here, failed = current.set(attempt), None
        try:
            values = context.run(self.handler, program, input=given, strict=self.strict)
            outcome = outcomes.success(rows[0], lease, values)
        except Exception as error:  # noqa: BLE001 - as the slot does
            outcome, failed = outcomes.failure(rows[0], lease, kind, error), error
        finally:
            current.reset(here)
        (answer,) = store.settle([outcome._replace(run_id=self.run_id)])
        assert answer.state == outcome.state
        if failed is not None:
            raise failed
        return values

    def handler(self, run: RunContext, program: Program) -> list[int]:
        """Go through the program."""
        return walk(program, partial(self.do, run), [])

    def do(self, run: RunContext, call: Do) -> int:
        how: dict[str, Any] = {"atomic": True} if call.mode == "atomic" else {}
        if call.mode in {"asked", "blind"}:
            recover = self.asked if call.mode == "asked" else None
            how = {"side_effect": True, "claim_ttl": CLAIM_TTL, "recover": recover}
        try:
            value: int = run.step(call.name, self.body, call, **how)
        except Fell:
            if not call.caught:
                raise
            return -1
        return value

    def body(self, call: Do) -> int:
        info = current_step()
        assert info is not None
        self.world.bodies[info.key] += 1
        self.moment()
        if call.fall == "before" and self.world.bodies[info.key] == 1:
            raise Fell
        if call.mode == "atomic":
            leave_effect(self.run_id, info.key)
        else:
            self.world.fires.append(info.key)
        self.moment()
        if call.fall == "after" and self.world.bodies[info.key] == 1:
            raise Fell
        effects = self.rows() if call.mode == "atomic" else self.world.fires
        return effects.count(info.key)

    def asked(self, info: StepInfo) -> dict[str, Any]:
        fired = self.world.fires.count(info.key)
        return {"done": True, "output": 1000 + fired} if fired else {"done": False}

    def rows(self) -> list[str]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT step FROM test_effect ORDER BY id")
            return [row[0] for row in cursor.fetchall()]

    def moment(self) -> None:
        """Die here, if this is the moment."""
        self.left -= 1
        if self.left == 0:
            self.dead = True
            raise Crash


class RunsMachine(RuleBasedStateMachine):
    """Acts on the product and on the interpreter alike."""

    looked = False

    @initialize(**BEGINNINGS)
    def begin(self, owned: bool, strict: bool, program: Program) -> None:
        """Stop the clock at noon and begin the first run."""
        self.override = clock.override(NOON)
        self.clock = self.override.__enter__()
        self._begin(owned, strict, program)

    def _begin(self, owned: bool, strict: bool, program: Program) -> None:
        for table in TABLES:  # a TRUNCATE takes PostgreSQL far longer
            with connection.cursor() as cursor:
                cursor.execute(f"DELETE FROM {table}")
        self.program = program
        self.product = Product(owned=owned, strict=strict)
        self.model = Interpreter(owned=owned, strict=strict)
        for point in POINTS:
            failpoints.hook(point, self.product.moment)
        LIVING[:] = [self.product]

    def teardown(self) -> None:
        """Let go of the clock and the points."""
        if hasattr(self, "override"):
            self.override.__exit__(None, None, None)
        for point in POINTS:
            failpoints.hook(point, None)
        LIVING.clear()

    @precondition(lambda self: self.model.over)
    @rule(**BEGINNINGS)
    def begin_another(self, owned: bool, strict: bool, program: Program) -> None:
        """Enter the run that is over once more, then leave it for another one."""
        self._enter(None, 0)
        self.everything_is_equal()
        self._begin(owned, strict, program)

    @precondition(lambda self: not self.model.over)
    @rule(
        wait=st.sampled_from([0, LEASE, LEASE, LEASE, CLAIM_TTL - 1, CLAIM_TTL]),
        given=st.sampled_from([None, None, 1, 1, 2]),
        crash_at=st.one_of(st.just(0), st.integers(1, 6), st.integers(1, 24)),
    )
    def enter(self, wait: int, given: int | None, crash_at: int) -> None:
        """Enter after so many seconds, and die at some moment or live."""
        self.clock.advance(timedelta(seconds=wait))
        self.model.now += wait
        self._enter(given, crash_at)

    def _enter(self, given: int | None, crash_at: int) -> None:
        ours = _outcome(self.product.enter, self.program, given, crash_at)
        assert ours == _outcome(self.model.enter, self.program, given, crash_at)

    @precondition(lambda self: not self.model.over)
    @rule(program=programs)
    def deploy(self, program: Program) -> None:
        """Change the code between two entries."""
        self.program = program
        self.looked = True  # at the same rows already

    @precondition(lambda self: self.model.entries > 2)
    @rule()
    def cancel(self) -> None:
        """Ask the run to stop."""
        assert cancel_run(self.product.run_id, "test") is self.model.cancel()

    @precondition(lambda self: any(rec.state != "done" for rec in self.model.steps.values()))
    @rule(data=st.data(), output=st.sampled_from([None, 500]))
    def resolve(self, data: st.DataObject, output: int | None) -> None:
        """Decide a step, as far as it may be."""
        key = data.draw(st.sampled_from(sorted(self.model.steps)))
        said: dict[str, Any] = {"rerun": True} if output is None else {"output": output}
        answer = resolve_step(self.product.run_id, key, **said)
        assert answer is self.model.resolve(key, output)

    @precondition(lambda self: self.model.job in {"dead", "canceled"})
    @rule()
    def revive(self) -> None:
        """Give the job another chance."""
        assert (retry_job(self.product.job) is not None) is self.model.revive()

    @invariant()
    def everything_is_equal(self) -> None:
        """Compare the journal, the run, the job and the effects."""
        if self.looked or not hasattr(self, "model"):
            self.looked = False
            return
        model, product = self.model, self.product
        assert product.world.bodies == model.world.bodies
        assert Counter(product.world.fires) == Counter(model.world.fires)
        assert Counter(product.rows()) == Counter(model.world.rows)
        stored = {
            step.key: (step.ordinal, step.mode, step.state, step.attempt, step.output)
            for step in Step.objects.all()
        }
        names = {"asked": "side_effect", "blind": "side_effect"}
        assert stored == {
            key: (rec.ordinal, names.get(rec.mode, rec.mode), rec.state, rec.attempt, rec.output)
            for key, rec in model.steps.items()
        }
        run = Run.objects.filter(run_id=product.run_id).first()
        found = ("", 0, None, None)
        if run is not None:
            found = (run.state, run.entries, run.input, run.result)
        assert found == (model.state, model.entries, model.input, model.result)
        if product.owned:
            row = Job.objects.get()
            became = {"succeeded": "completed"}.get(row.state, row.state)
            assert (became, row.attempt) == (model.job, model.attempt)


def _outcome(enter: Any, *given: Any) -> tuple[str, Any]:
    """Return what an entry came to, in words that both have."""
    try:
        return "values", enter(*given)
    except Refused as error:
        return "error", str(error)
    except (Crash, Fell) as error:
        return "error", type(error).__name__
    except Exception as error:  # noqa: BLE001 - compared by name
        return "error", type(error).__name__


#: The product whose death silences this process.
LIVING: list[Product] = []


@pytest.fixture
def stage(transactional_db: None, monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[None]:
    """A kind, a table of effects, and a journal that a dead process cannot reach."""
    settings.GNL = {**getattr(settings, "GNL", {}), "FAILPOINTS": True}

    def only_alive(self: Journal) -> Any:
        if any(product.dead for product in LIVING):
            raise Crash
        return connections[self.using]

    monkeypatch.setattr(Journal, "connection", property(only_alive))
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS test_effect")
        number = {"postgresql": "bigserial", "mysql": "bigint AUTO_INCREMENT"}
        kind = number.get(connection.vendor, "integer")
        cursor.execute(
            f"CREATE TABLE test_effect (id {kind} PRIMARY KEY, run varchar(255), step varchar(255))"
        )
    job(KIND, retry_delay=0)(lambda payload, ctx: None)
    yield
    kinds.forget(KIND)
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE test_effect")


@pytest.mark.row("runs", "D86")
@pytest.mark.timeout(3600 if NIGHTLY else 300)
def test_runs_do_what_the_interpreter_does(stage: None) -> None:
    run_state_machine_as_test(RunsMachine, settings=PROFILE)  # type: ignore[no-untyped-call]


class Doubling(Interpreter):
    """An interpreter in which nobody asks what became of a side effect."""

    def _side_effect(self, key: str, call: Do, rec: Any) -> int:
        if rec is not None:
            rec.state = "released"
        return super()._side_effect(key, call, rec)


class Careless(Interpreter):
    """An interpreter that goes on whatever stands in a step's place."""

    def step(self, call: Do) -> int:
        before, self.strict = self.strict, False
        try:
            return super().step(call)
        finally:
            self.strict = before


@pytest.mark.row("reliability", "2")
@pytest.mark.parametrize("wrong", [Doubling, Careless])
def test_runs_that_differ_from_the_interpreter_are_found(
    wrong: type[Interpreter], stage: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "Interpreter", wrong)
    quick = settings(PROFILE, phases=[Phase.generate])
    with pytest.raises(AssertionError):
        run_state_machine_as_test(RunsMachine, settings=quick)  # type: ignore[no-untyped-call]
