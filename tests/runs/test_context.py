"""`run`: the same facts and names in sync and in async code."""

import inspect
from typing import Any

import pytest
from asgiref.sync import async_to_sync

from gnl_django import AsyncRunContext, RunContext, run_durable
from gnl_django.core.revocation import Revocation
from gnl_django.runs.entry import Entry
from gnl_django.runs.journal import journal_for
from tests.conformance.conftest import NOON
from tests.conformance.support_runs import Body, async_executor, keys_of, steps_of

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_facts_of_a_run() -> None:
    signal = Revocation()
    entry = Entry("r1", journal_for("default"), rights=(), signal=signal, org="acme",
                  scheduled_for=NOON)  # fmt: skip
    run = RunContext(entry)
    assert (run.run_id, run.org, run.scheduled_for) == ("r1", "acme", NOON)
    assert (run.signal is signal, run.input, run.attempt) == (True, None, 1)
    run_durable("r2", lambda run: [run.org, run.scheduled_for], input=[1])


def test_both_contexts_have_the_same_names_and_arguments() -> None:
    for name in ("step", "claim", "frozen"):
        one, other = (getattr(kind, name) for kind in (RunContext, AsyncRunContext))
        assert list(inspect.signature(one).parameters) == list(inspect.signature(other).parameters)


def test_a_body_gets_its_arguments_but_not_the_options() -> None:
    def work(run: RunContext) -> Any:
        return run.step("s", lambda *args, **kwargs: [args, kwargs], 1, 2, three=3,
                        side_effect=True, claim_ttl=5)  # fmt: skip

    assert run_durable("r1", work) == [[1, 2], {"three": 3}]


def test_a_coroutine_step_takes_its_place_when_it_is_called() -> None:
    async def program() -> list[Any]:
        run = await async_executor()
        second = run.step("second", Body(2))
        first = run.step("first", Body(1))
        with pytest.raises(ValueError, match="step name"):
            run.step("", Body())  # at once, not when awaited
        with pytest.raises(TypeError):
            run.step("s", None)  # type: ignore[arg-type]
        return [await first, await second]

    assert async_to_sync(program)() == [1, 2]
    assert keys_of() == ["second", "first"]


def test_a_coroutine_body_raises_through_the_journal() -> None:
    async def program() -> None:
        run = await async_executor()

        async def body() -> None:
            raise LookupError("mine")

        with pytest.raises(LookupError, match="mine"):
            await run.step("s", body)
        with pytest.raises(LookupError, match="mine"):
            await run.step("s", body, side_effect=True)

    async_to_sync(program)()
    assert steps_of() == [("s#2", "failed", None)]
