"""The agent: where it runs, and the forms of a reply."""

from typing import Any

import pytest
from asgiref.sync import async_to_sync

from gnl_django import run_agent
from gnl_django.runs import agent

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_reply_is_brought_into_one_form() -> None:
    assert agent._checked("text") == {"content": "text", "tool_calls": []}
    reply = {
        "content": None,
        "tool_calls": [{"id": "1", "name": "a", "arguments": None, "type": "function"}],
        "usage": {"tokens": 7},
    }
    assert agent._checked(reply) == {
        "content": "",
        "tool_calls": [{"id": "1", "name": "a", "arguments": {}}],
    }


def test_all_faults_of_a_reply_are_named() -> None:
    calls: list[Any] = [{"id": 1, "name": 2, "arguments": 3}, None]
    found = [issue.path for issue in agent._faults({"content": 5, "tool_calls": calls})]
    assert found == [
        "/content", "/tool_calls/0/id", "/tool_calls/0/name", "/tool_calls/0/arguments",
        "/tool_calls/1",
    ]  # fmt: skip


def test_an_agent_knows_whether_it_is_on_a_loop() -> None:
    def model(messages: Any, tools: Any) -> str:
        return str(len(messages))

    async def program() -> Any:
        coroutine = run_agent("r1", model, [], "go", system="s")
        assert not isinstance(coroutine, dict)
        return await coroutine

    assert async_to_sync(program)()["text"] == "2"
    assert run_agent("r2", model, [], "go", org="acme")["text"] == "1"


def test_the_limit_of_turns_is_32() -> None:
    asked = {"tool_calls": [{"id": "1", "name": "none"}]}
    count: list[int] = []

    def model(messages: Any, tools: Any) -> Any:
        count.append(1)
        return asked

    with pytest.raises(agent.BudgetExceeded):
        run_agent("r1", model, [], "go")
    assert len(count) == 32
