"""A loop of a model and its tools, in which every call is a recorded step (runs.md 3.5, R27-R31).

The model is any callable. A killed process resumes the conversation: answers that were recorded are
not asked for again, tools that were recorded are not called again.
"""

import asyncio
import inspect
import json
from collections.abc import Callable, Generator, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, TypedDict

from asgiref.sync import async_to_sync, sync_to_async

from gnl_django.core.revocation import Revocation
from gnl_django.errors import BudgetExceeded, InvalidPayload, PayloadIssue, RunInputMismatch
from gnl_django.runs import values
from gnl_django.runs.api import run_durable
from gnl_django.runs.context import AsyncRunContext, RunContext
from gnl_django.runs.tools import Tool, toolbox

MAX_TURNS = 32


class AgentResult(TypedDict):
    """What an agent came to: its last words, the whole conversation, the number of model calls."""

    text: str
    messages: list[dict[str, Any]]
    turns: int


@dataclass(frozen=True, slots=True)
class _Request:
    """A step of the conversation."""

    name: str
    function: Callable[[], Any]
    how: dict[str, Any]


def run_agent(
    run_id: str,
    model: Callable[..., Any],
    tools: Mapping[str, Any] | Iterable[Any],
    prompt: str,
    *,
    system: str | None = None,
    max_turns: int = MAX_TURNS,
    signal: Revocation | None = None,
    org: str | None = None,
    using: str | None = None,
) -> Any:
    """Let `model` work on `prompt` with `tools` until it answers without calling one.

    model: `model(messages, tools) -> reply`, sync or async. messages are dicts with "role"
    ("system", "user", "assistant", "tool") and "content"; tools are dicts with "name",
    "description" and "parameters" (JSON schema); the reply is text, or {"content": str,
    "tool_calls": [{"id", "name", "arguments": dict}]}.
    tools: functions, or a mapping of names to them; `tool(fn, mode=..)` says how often one may be
    called around a crash (default: at most once).
    max_turns: model calls in all. run_id, signal, org, using: as for `run_durable`; in a handler
    pass `ctx.run_id`.

    Returns an AgentResult; called where an event loop runs, a coroutine that does. Raises
    BudgetExceeded before the call that would exceed max_turns, InvalidPayload for a reply of
    another form, and what `run_durable` and the tools raise (runs.md 3.5).
    """
    if not callable(model):
        raise TypeError(f"model must be callable, not {type(model).__name__}")
    if isinstance(max_turns, bool) or not isinstance(max_turns, int) or max_turns < 1:
        raise ValueError(f"max_turns: {max_turns!r} is not a whole number above 0")
    if not isinstance(prompt, str) or not isinstance(system, str | None):
        raise TypeError("prompt and system must be text")
    given = {"prompt": prompt, "system": system}
    text = values.encode(f"run:{run_id}", given)
    box = toolbox(tools)

    def converse(run: RunContext) -> AgentResult:
        return _drive(run, _loop(_begin(run, text), model, box, max_turns))

    async def converse_async(run: AsyncRunContext) -> AgentResult:
        begun = await sync_to_async(_begin)(run, text)
        return await _drive_async(run, _loop(begun, model, box, max_turns))

    return run_durable(
        run_id, converse_async if _on_a_loop() else converse, signal=signal, org=org, using=using
    )


def _on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _begin(run: RunContext | AsyncRunContext, text: str) -> dict[str, Any]:
    """Return the input that the first entry froze: a resumed conversation keeps its prompt."""
    entry = run.entry
    entry.give_input(text, strict=False)
    found = entry.input
    if not isinstance(found, dict) or found.keys() != {"prompt", "system"}:
        raise RunInputMismatch(entry.run_id)
    return found


def _loop(
    given: dict[str, Any], model: Callable[..., Any], box: dict[str, Tool], max_turns: int
) -> Generator[_Request, Any, AgentResult]:
    """Yield steps and take their outputs; the messages come from recorded outputs only (R28)."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": given["prompt"]}]
    if given["system"] is not None:
        messages.insert(0, {"role": "system", "content": given["system"]})
    described = [tool.description for tool in box.values()]
    for turn in range(max_turns):
        reply = yield _Request("model", _asking(model, messages, described), {})
        messages.append({"role": "assistant", **reply})
        if not reply["tool_calls"]:
            return {"text": reply["content"], "messages": messages, "turns": turn + 1}
        for call in reply["tool_calls"]:
            tool = box.get(call["name"])
            if tool is None:
                said = {"error": f"there is no tool {call['name']!r}"}
                request = _Request("tool:unknown", partial(dict, said), {})
            else:
                request = _Request(f"tool:{tool.name}", tool.call(call["arguments"]), tool.how)
            output = yield request
            content = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
            messages.append(
                {
                    "role": "tool",
                    "tool_call_id": call["id"],
                    "name": call["name"],
                    "content": content,
                }
            )
    raise BudgetExceeded("max_turns", max_turns, max_turns)


def _asking(
    model: Callable[..., Any], messages: list[dict[str, Any]], tools: list[dict[str, Any]]
) -> Callable[[], Any]:
    """Return the body of a model step; it checks the reply, so that no wrong one is recorded."""
    said, tools = deepcopy((messages, tools))  # the model may change them

    async def ask_async() -> Any:
        return _checked(await model(said, tools))

    def ask() -> Any:
        return _checked(model(said, tools))

    forms = (model, type(model).__call__)
    return ask_async if any(map(inspect.iscoroutinefunction, forms)) else ask


def _checked(reply: Any) -> dict[str, Any]:
    """Return a reply in its full form; InvalidPayload("model", ..) for another one (R30)."""
    if isinstance(reply, str):
        reply = {"content": reply}
    issues = list(_faults(reply))
    if issues:
        raise InvalidPayload("model", issues)
    calls = [
        {"id": call["id"], "name": call["name"], "arguments": call.get("arguments") or {}}
        for call in reply.get("tool_calls") or []
    ]
    return {"content": reply.get("content") or "", "tool_calls": calls}


def _faults(reply: Any) -> Iterable[PayloadIssue]:
    if not isinstance(reply, dict):
        yield PayloadIssue("/", f"a reply is text or a dict, not {type(reply).__name__}")
        return
    if not isinstance(reply.get("content"), str | None):
        yield PayloadIssue("/content", "not text")
    calls = reply.get("tool_calls") or []
    if not isinstance(calls, list):
        yield PayloadIssue("/tool_calls", "not a list")
        return
    if "content" not in reply and not calls:
        yield PayloadIssue("/", "neither content nor tool_calls")
    for at, call in enumerate(calls):
        if not isinstance(call, dict):
            yield PayloadIssue(f"/tool_calls/{at}", "not a dict")
            continue
        for name in ("id", "name"):
            if not isinstance(call.get(name), str):
                yield PayloadIssue(f"/tool_calls/{at}/{name}", "not text")
        if not isinstance(call.get("arguments") or {}, dict):
            yield PayloadIssue(f"/tool_calls/{at}/arguments", "not a dict")


def _drive(run: RunContext, talk: Generator[_Request, Any, AgentResult]) -> AgentResult:
    try:
        request = next(talk)
        while True:
            function = request.function
            if inspect.iscoroutinefunction(function):
                function = async_to_sync(function)
            request = talk.send(run.step(request.name, function, **request.how))
    except StopIteration as end:
        result: AgentResult = end.value
        return result


async def _drive_async(
    run: AsyncRunContext, talk: Generator[_Request, Any, AgentResult]
) -> AgentResult:
    try:
        request = next(talk)
        while True:
            request = talk.send(await run.step(request.name, request.function, **request.how))
    except StopIteration as end:
        result: AgentResult = end.value
        return result
