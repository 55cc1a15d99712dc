"""`run_durable`: what it takes, and whose run it enters."""

from typing import Any

import pytest
from django.utils.connection import ConnectionDoesNotExist

from gnl_django import (
    InvalidPayload,
    JobContext,
    RunContext,
    current_step,
    get_run,
    run_durable,
    run_handler_once,
)
from gnl_django.models import Run
from tests.conformance.conftest import Declare
from tests.conformance.support_runs import Body

pytestmark = pytest.mark.django_db(transaction=True)


def test_arguments_are_passed_on_and_options_are_not() -> None:
    def work(run: RunContext, *args: Any, **kwargs: Any) -> Any:
        return [args, kwargs, run.input, run.org]

    found = run_durable("r1", work, 1, input=2, strict=False, org="acme", using=None, other=3)
    assert found == [[1], {"other": 3}, 2, "acme"]
    assert get_run("r1").strict is False  # type: ignore[union-attr]


def test_an_alias_that_does_not_exist_is_said_so() -> None:
    with pytest.raises(ConnectionDoesNotExist):
        run_durable("r1", Body(), using="nowhere")
    assert Run.objects.count() == 0


def test_outside_of_a_body_there_is_no_step() -> None:
    assert current_step() is None
    assert run_durable("r1", lambda run: current_step()) is None


def test_a_trial_keeps_a_lone_run_as_any_other(declare: Declare) -> None:
    def handle(payload: Any, ctx: JobContext) -> Any:
        return run_durable("alone", lambda run: run.step("s", Body(1)))

    declare("t.trial", handle)
    assert run_handler_once("t.trial") == 1
    assert get_run("alone").state == "completed"  # type: ignore[union-attr]


def test_a_handlers_run_checks_its_input_too(declare: Declare) -> None:
    def handle(payload: Any, ctx: JobContext) -> Any:
        with pytest.raises(InvalidPayload):
            ctx.run(Body(), input={1})
        with pytest.raises(TypeError, match="needs a function"):
            ctx.run()
        return ctx.run(lambda run: run.input, input=5)

    declare("t.trial", handle)
    assert run_handler_once("t.trial") == 5
