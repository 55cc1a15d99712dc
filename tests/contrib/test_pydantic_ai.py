"""A pydantic-ai agent in a durable run: nothing that was recorded is asked or called again."""

from typing import Any

import pytest
from asgiref.sync import async_to_sync
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

from gnl_django import InvalidPayload, Worker, enqueue, get_run, job, list_steps, run_durable
from gnl_django.contrib.pydantic_ai import run_agent
from gnl_django.models import Job
from gnl_django.queue.options import kinds

pytestmark = pytest.mark.django_db(transaction=True)


@async_to_sync
async def durable(run_id: str, fn: Any, *args: Any, **kwargs: Any) -> Any:
    return await run_durable(run_id, fn, *args, **kwargs)


class Ledger:
    """An agent with two tools, and what its model and tools were asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.called: list[str] = []
        self.agent = Agent(FunctionModel(self.answer))
        self.agent.tool_plain(self.charge)
        self.agent.tool_plain(self.mail)

    def charge(self, amount: int) -> int:
        self.called.append("charge")
        return amount

    def mail(self) -> str:
        self.called.append("mail")
        if self.called.count("mail") == 1:
            raise ModelRetry("no address yet")
        return "sent"

    def answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.asked += 1
        last = messages[-1]
        assert isinstance(last, ModelRequest)
        part = last.parts[-1]
        if isinstance(part, ToolReturnPart) and part.tool_name == "charge":
            return ModelResponse(parts=[ToolCallPart("mail", {})])
        if "no address yet" in str(getattr(part, "content", "")):  # what ModelRetry says
            return ModelResponse(parts=[ToolCallPart("mail", {})])
        if isinstance(part, ToolReturnPart):
            return ModelResponse(parts=[TextPart(f"done: {part.content}")])
        return ModelResponse(parts=[ToolCallPart("charge", {"amount": 3})])


def test_a_resumed_agent_repeats_nothing_that_was_recorded() -> None:
    ledger = Ledger()

    async def work(run: Any, *, stop: bool) -> str:
        result = await run_agent(run, ledger.agent, "pay and tell")
        if stop:
            raise RuntimeError("the process ends here")
        return str(result.output)

    with pytest.raises(RuntimeError, match="the process ends here"):
        durable("pay-1", work, stop=True)
    assert (ledger.asked, ledger.called) == (4, ["charge", "mail", "mail"])
    assert durable("pay-1", work, stop=False) == "done: sent"
    assert (ledger.asked, ledger.called) == (4, ["charge", "mail", "mail"])
    keys = [step.key for step in list_steps("pay-1")]
    assert keys == [
        "model", "tool:charge", "model#2", "tool:mail", "model#3", "tool:mail#2", "model#4",
    ]  # fmt: skip


def test_an_agent_in_a_job_goes_on_where_it_was_broken_off() -> None:
    ledger = Ledger()
    broken = []

    @job("contrib.agent", retry_delay=0)
    async def handler(payload: Any, ctx: Any) -> str:
        def charge(amount: int) -> int:
            ledger.called.append("charge")
            return amount

        agent = Agent(FunctionModel(ledger.answer))
        agent.tool_plain(charge)

        @agent.tool_plain
        def mail() -> str:
            if not broken:
                broken.append(True)
                raise OSError("the network is down")
            return "sent"

        result = await run_agent(ctx, agent, "pay and tell", modes={"mail": "plain"})
        return str(result.output)

    try:
        job_id = enqueue("contrib.agent")
        worker = Worker(name="agent")
        worker.run_until_idle()
        worker.stop()
    finally:
        kinds.forget("contrib.agent")
    row = Job.objects.get(pk=job_id)
    assert (row.state, row.result, row.attempt) == ("succeeded", "done: sent", 2)
    assert (ledger.asked, ledger.called) == (3, ["charge"])
    run = get_run(f"job:{job_id}")
    assert run is not None
    assert (run.state, run.steps) == ("completed", 5)


async def _hello(run: Any, agent: Agent[Any, Any], **options: Any) -> str:
    return str((await run_agent(run, agent, "hello", **options)).output)


def test_the_library_s_own_test_model_works_through_all_tools() -> None:
    agent: Agent[Any, Any] = Agent()

    @agent.tool_plain
    def look(place: str) -> list[str]:
        return [place]

    said = durable("t-1", _hello, agent, model=TestModel())
    assert said == '{"look":["a"]}'
    assert [step.key for step in list_steps("t-1")] == ["model", "tool:look", "model#2"]


def test_wrong_use_says_what_is_wrong() -> None:
    agent: Agent[Any, Any] = Agent()
    with pytest.raises(TypeError, match="the agent has no model"):
        durable("t-2", _hello, agent)

    @agent.tool_plain
    def odd() -> object:
        return {1, 2}

    with pytest.raises(InvalidPayload, match="tool:odd"):
        durable("t-3", _hello, agent, model=TestModel())

    async def stream(run: Any) -> None:
        agent = Agent(TestModel())
        await run_agent(run, agent, "x", event_stream_handler=_swallow)

    with pytest.raises(UserError, match="does not stream"):
        durable("t-4", stream)


async def _swallow(ctx: Any, events: Any) -> None:
    async for _ in events:
        pass
