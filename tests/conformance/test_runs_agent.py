"""The agent's loop: every call of model and tools is a recorded step (D74-D83).

The models here are scripts: they answer by what the conversation already holds, as a real one does.
"""

import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import Group
from pydantic import BaseModel

from gnl_django import (
    InvalidPayload,
    JobContext,
    ToolContext,
    ToolError,
    get_run,
    run_agent,
    run_durable,
    tool,
)
from gnl_django.errors import BudgetExceeded, RunInputMismatch, StepUnresolved
from gnl_django.models import Run
from tests.conformance.conftest import Declare, FailPoint, MakeWorker
from tests.conformance.helpers import job_of, state_of
from tests.conformance.support_runs import (
    RUN,
    Body,
    Crash,
    crash_at,
    crashes,
    keys_of,
    run_row,
    step_row,
    steps_of,
)

pytestmark = pytest.mark.django_db(transaction=True)


def call(name: str, /, **arguments: Any) -> dict[str, Any]:
    """Return a reply that asks for one tool."""
    return {
        "content": "",
        "tool_calls": [{"id": f"c-{name}", "name": name, "arguments": arguments}],
    }


class Script:
    """A model that gives its replies in turn, by the number of answers it finds behind it."""

    def __init__(self, *replies: Any) -> None:
        self.replies = replies
        self.seen: list[list[dict[str, Any]]] = []
        self.tools: list[Any] = []

    def __call__(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Any:
        """Answer."""
        self.seen.append(messages)
        self.tools = tools
        turn = sum(message["role"] == "assistant" for message in messages)
        return self.replies[turn]

    @property
    def calls(self) -> int:
        """How often it was asked."""
        return len(self.seen)


EXAMPLE = (call("charge", amount=7), call("mail", to="a@example.org"), "done")


class Shop:
    """Two tools that count."""

    def __init__(self) -> None:
        self.effects: Counter[str] = Counter()

    def charge(self, amount: int) -> dict[str, int]:
        """Take money."""
        self.effects["charge"] += 1
        return {"charged": amount}

    def mail(self, to: str) -> str:
        """Send a mail."""
        self.effects["mail"] += 1
        return f"sent to {to}"

    @property
    def tools(self) -> list[Callable[..., Any]]:
        """Both."""
        return [self.charge, self.mail]


EXAMPLE_KEYS = ["model", "tool:charge", "model#2", "tool:mail", "model#3"]

SPELLINGS: dict[str, Callable[..., Any]] = {
    "run_agent": lambda ctx, model, tools: run_agent(ctx.run_id, model, tools, "buy"),
    "run_durable": lambda ctx, model, tools: run_durable(
        ctx.run_id, model=model, tools=tools, prompt="buy"
    ),
    "ctx.run": lambda ctx, model, tools: ctx.run(model=model, tools=tools, prompt="buy"),
}


@pytest.mark.row("runs", "D74")
def test_three_spellings_leave_the_same_journal(declare: Declare, make_worker: MakeWorker) -> None:
    journals = []
    for name in SPELLINGS:

        def handle(payload: str, ctx: JobContext) -> Any:
            return SPELLINGS[payload](ctx, Script(*EXAMPLE), Shop().tools)

        job_id = declare("t.agent", handle).enqueue(name)
        make_worker().run_once()
        assert state_of(job_id) == "succeeded", job_of(job_id).error
        run_id = f"job:{job_id}"
        journals.append((steps_of(run_id), job_of(job_id).result, run_row(run_id).input))
    assert journals == [journals[0]] * 3
    assert [key for key, _, _ in journals[0][0]] == EXAMPLE_KEYS
    assert journals[0][1]["text"] == "done"
    assert journals[0][2] == {"prompt": "buy", "system": None}


@pytest.mark.row("runs", "D74")
def test_three_spellings_for_coroutines_too(declare: Declare, make_worker: MakeWorker) -> None:
    shop, journals = Shop(), []

    async def handle(payload: str, ctx: Any) -> Any:
        script = Script(*EXAMPLE)

        async def model(messages: Any, tools: Any) -> Any:
            return script(messages, tools)

        return await SPELLINGS[payload](ctx, model, shop.tools)

    kind = declare("t.agent", handle)
    for name in SPELLINGS:
        job_id = kind.enqueue(name)
        make_worker().run_once()
        assert state_of(job_id) == "succeeded", job_of(job_id).error
        journals.append((steps_of(f"job:{job_id}"), job_of(job_id).result))
    assert shop.effects == {"charge": 3, "mail": 3}
    assert journals == [journals[0]] * 3


@pytest.mark.row("runs", "D75")
def test_a_resumed_agent_asks_and_does_only_what_has_no_record(
    declare: Declare, make_worker: MakeWorker, failpoint: FailPoint
) -> None:
    script, shop = Script(*EXAMPLE), Shop()

    def handle(payload: Any, ctx: JobContext) -> Any:
        return ctx.run(model=script, tools=shop.tools, prompt="buy")

    job_id = declare("t.agent", handle, retry_delay=0).enqueue()
    worker = make_worker()
    crash_at(failpoint, "step.committed", nth=4)
    worker.run_once()
    assert keys_of(f"job:{job_id}") == EXAMPLE_KEYS[:4]
    assert (script.calls, shop.effects) == (2, {"charge": 1, "mail": 1})
    worker.run_until_idle()
    assert (script.calls, shop.effects) == (3, {"charge": 1, "mail": 1})
    assert keys_of(f"job:{job_id}") == EXAMPLE_KEYS
    result = job_of(job_id).result
    assert (result["text"], result["turns"]) == ("done", 3)
    assert [message["role"] for message in result["messages"]] == [
        *("user", "assistant", "tool", "assistant", "tool", "assistant"),
    ]
    assert result == run_agent("uninterrupted", Script(*EXAMPLE), Shop().tools, "buy")


@pytest.mark.row("runs", "D75")
def test_what_the_model_is_told() -> None:
    script = Script(*EXAMPLE)
    result = run_agent(RUN, script, Shop().tools, "buy", system="be brief")
    assert script.seen[0] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "buy"},
    ]
    assert script.seen[1][2:] == [
        {"role": "assistant", **EXAMPLE[0]},  # type: ignore[dict-item]
        {
            "role": "tool", "tool_call_id": "c-charge", "name": "charge",
            "content": '{"charged": 7}',
        },
    ]  # fmt: skip
    assert script.seen[2][-1]["content"] == "sent to a@example.org"
    assert [(each["name"], each["description"]) for each in script.tools] == [
        ("charge", "Take money."), ("mail", "Send a mail."),
    ]  # fmt: skip
    assert script.tools[0]["parameters"]["properties"]["amount"]["type"] == "integer"
    assert script.tools[0]["parameters"]["required"] == ["amount"]
    assert result["messages"][:-1] == script.seen[2]
    assert run_agent(RUN, Body(), [], "buy") == result
    assert get_run(RUN).result == result  # type: ignore[union-attr]


@pytest.mark.row("runs", "D75")
def test_a_model_that_changes_what_it_was_given_changes_nothing() -> None:
    def vandal(messages: Any, tools: Any) -> Any:
        reply = Script(*EXAMPLE)(messages, tools)
        for message in messages:
            for asked in message.get("tool_calls", ()):
                asked["arguments"].clear()
                asked["name"] = "changed"
            message.clear()
        for each in tools:
            assert each["parameters"]
            each["parameters"].clear()
            each.clear()
        return reply

    result = run_agent(RUN, vandal, Shop().tools, "buy")
    assert result == run_agent("r2", Script(*EXAMPLE), Shop().tools, "buy")


# what a model asks for wrongly is an answer


def orders(order: "Order", count: int = 1, note: str | None = None) -> Any:
    """Take an order."""
    if count > 5:
        raise ToolError("too many")
    return [order.article, count, note]


class Order(BaseModel):
    """What is ordered."""

    article: str


ASKED: list[tuple[Any, str, Any]] = [
    (call("orders", order={"article": "a"}), "tool:orders", ["a", 1, None]),
    (call("orders", order={"article": "a"}, count="3"), "tool:orders", ["a", 3, None]),
    (call("orders", order={"article": "a"}, count=6), "tool:orders", "too many"),
    (call("orders"), "tool:orders", "order: Field required"),
    (call("orders", order={"article": "a"}, x=1), "tool:orders", "x: Extra inputs"),
    (call("orders", order={"article": "a"}, count="many"), "tool:orders", "count: Input"),
    (call("orders", order={}), "tool:orders", "order.article: Field required"),
    (call("orders", order={"article": "a"}, ctx=1), "tool:orders", "ctx: Extra inputs"),
    (call("other", a=1), "tool:unknown", "there is no tool 'other'"),
    (call("", a=1), "tool:unknown", "there is no tool ''"),
    (call("a#\n" * 99), "tool:unknown", "there is no tool"),
]


@pytest.mark.row("runs", "D77")
@pytest.mark.parametrize("mode", ["side_effect", "plain", "atomic"])
def test_a_wrong_call_is_answered_recorded_and_the_loop_goes_on(mode: Any) -> None:
    for n, (asked, key, answer) in enumerate(ASKED):
        script = Script(asked, "done")
        for _ in range(2):
            result = run_agent(f"r{n}", script, [tool(orders, mode=mode)], "buy")
            assert (result["text"], script.calls) == ("done", 2)
        assert keys_of(f"r{n}") == ["model", key, "model#2"]
        output = step_row(key, f"r{n}").output
        if isinstance(answer, list):
            assert output == answer
        else:
            assert answer in output["error"]
            assert set(output) == {"error"}


@pytest.mark.row("runs", "D77")
def test_a_coroutine_tool_answers_wrong_calls_alike() -> None:
    async def wait(seconds: int) -> int:
        if seconds > 9:
            raise ToolError("too long")
        return seconds

    script = Script(
        call("wait", seconds=1), call("wait", seconds="x"), call("wait", seconds=10), ""
    )
    assert run_agent(RUN, script, [wait], "wait")["text"] == ""
    outputs = [output for key, _, output in steps_of() if key.startswith("tool:")]
    assert outputs[0] == 1
    assert "seconds" in outputs[1]["error"]
    assert outputs[2] == {"error": "too long"}


@pytest.mark.row("runs", "D78")
def test_a_tool_that_raises_fails_the_attempt_and_is_not_called_again(
    declare: Declare, make_worker: MakeWorker
) -> None:
    charge = Body(ConnectionError("cut off"))

    def handle(payload: Any, ctx: JobContext) -> Any:
        return ctx.run(model=script, tools={"charge": lambda: charge()}, prompt="buy")

    script = Script(call("charge"), "done")
    job_id = declare("t.agent", handle, retry_delay=0).enqueue()
    worker = make_worker()
    worker.run_once()
    row = step_row("tool:charge", f"job:{job_id}")
    assert (row.state, row.error, state_of(job_id)) == (
        "failed",
        "ConnectionError: cut off",
        "ready",
    )
    worker.run_until_idle()
    assert (state_of(job_id), charge.count, script.calls) == ("dead", 1, 1)
    assert job_of(job_id).error_class == "gnl_django.errors.StepUnresolved"


@pytest.mark.row("runs", "D78")
def test_a_tools_recover_decides(failpoint: FailPoint) -> None:
    charge = Body("charged")
    box = [
        tool(
            lambda: charge(), name="charge", recover=lambda info: {"done": True, "output": info.key}
        )
    ]
    failing = {"charge": lambda: Body(ConnectionError())()}
    script = Script(call("charge"), "done")
    with pytest.raises(ConnectionError):
        run_agent(RUN, script, failing, "buy")
    with pytest.raises(StepUnresolved):
        run_agent(RUN, script, failing, "buy")
    assert run_agent(RUN, script, box, "buy")["messages"][2]["content"] == "tool:charge"
    assert charge.count == 0


@pytest.mark.row("runs", "D79")
def test_a_plain_tool_runs_again_after_a_crash_and_an_atomic_one_does_not(
    failpoint: FailPoint,
) -> None:
    plain = Body()

    @tool(mode="plain")
    def look() -> None:
        """Look."""
        plain()

    @tool(mode="atomic")
    def store(name: str) -> str:
        """Store."""
        Group.objects.create(name=name)
        return name

    script = Script(call("look"), call("store", name="a"), "done")
    for point, nth in (("step.effect_done", 2), ("step.effect_done", 2), ("step.journaled", 1)):
        crash_at(failpoint, point, nth=nth)
        with crashes():
            run_agent(RUN, script, [look, store], "go")
        failpoint(point, lambda: None)
    assert run_agent(RUN, script, [look, store], "go")["text"] == "done"
    assert plain.count == 2
    assert Group.objects.count() == 1
    modes = [step_row(key).mode for key in ("model", "tool:look", "tool:store")]
    assert modes == ["plain", "plain", "atomic"]


@pytest.mark.row("runs", "D80")
def test_a_model_may_answer_with_text_or_a_dict_and_be_a_coroutine_or_an_object() -> None:
    async def coroutine(messages: Any, tools: Any) -> str:
        return "coroutine"

    async def with_more(more: str, messages: Any, tools: Any) -> dict[str, str]:
        return {"content": more}

    class Object:
        async def __call__(self, messages: Any, tools: Any) -> str:
            return "object"

    for n, (model, text) in enumerate(
        [
            (Script("text"), "text"),
            (Script({"content": "dict"}), "dict"),
            (Script({"content": "none", "tool_calls": None}), "none"),
            (Script({"content": "empty", "tool_calls": [], "usage": {1}}), "empty"),
            (coroutine, "coroutine"),
            (partial(with_more, "partial"), "partial"),
            (Object(), "object"),
        ]
    ):
        assert run_agent(f"r{n}", model, [], "go") == {
            "text": text,
            "messages": [
                {"role": "user", "content": "go"},
                {"role": "assistant", "content": text, "tool_calls": []},
            ],
            "turns": 1,
        }

    async def on_a_loop(model: Any) -> Any:
        return (await run_agent("loop", model, [], "go"))["text"]

    assert async_to_sync(on_a_loop)(partial(with_more, "loop")) == "loop"


MALFORMED: list[tuple[Any, str]] = [
    (None, "/"),
    (7, "/"),
    (["text"], "/"),
    ({}, "/"),
    ({"tool_calls": []}, "/"),
    ({"content": 7}, "/content"),
    ({"content": "", "tool_calls": {"id": 1}}, "/tool_calls"),
    ({"tool_calls": ["charge"]}, "/tool_calls/0"),
    ({"tool_calls": [{"name": "a"}]}, "/tool_calls/0/id"),
    ({"tool_calls": [{"id": "1", "name": 7}]}, "/tool_calls/0/name"),
    ({"tool_calls": [{"id": "1", "name": "a", "arguments": "{}"}]}, "/tool_calls/0/arguments"),
]


@pytest.mark.row("runs", "D80")
def test_a_malformed_reply_is_refused_and_not_recorded() -> None:
    for reply, path in MALFORMED:
        with pytest.raises(InvalidPayload) as caught:
            run_agent(RUN, Script(reply), Shop().tools, "buy")
        assert caught.value.kind == "model"
        assert caught.value.issues[0].path == path
        assert (steps_of(), run_row().state) == ([], "failed")
    assert run_agent(RUN, Script("better"), Shop().tools, "buy")["text"] == "better"


@pytest.mark.row("runs", "D80")
def test_a_reply_that_is_no_json_is_not_recorded_either() -> None:
    for reply in ("a\0b", call("charge", amount={1}), call("charge", amount=float("nan"))):
        with pytest.raises(InvalidPayload) as caught:
            run_agent(RUN, Script(reply), Shop().tools, "buy")
        assert caught.value.kind == "step:model"
    assert steps_of() == []


@pytest.mark.row("runs", "D81")
def test_a_model_that_never_stops_is_stopped_before_the_call_too_many() -> None:
    script, shop = Script(*[call("mail", to="x")] * 9), Shop()
    with pytest.raises(BudgetExceeded) as caught:
        run_agent(RUN, script, shop.tools, "go", max_turns=2)
    error = caught.value
    assert (error.name, error.limit, error.used) == ("max_turns", 2, 2)
    assert (script.calls, shop.effects) == (2, {"mail": 2})
    assert keys_of() == ["model", "tool:mail", "model#2", "tool:mail#2"]
    with pytest.raises(BudgetExceeded):
        run_agent(RUN, script, shop.tools, "go", max_turns=2)
    assert (script.calls, shop.effects) == (2, {"mail": 2})
    with pytest.raises(BudgetExceeded):
        run_agent(RUN, script, shop.tools, "go", max_turns=3)
    assert script.calls == 3


@pytest.mark.row("runs", "D82")
def test_a_prompt_that_has_changed_is_not_used_and_warned_of_once(
    declare: Declare, make_worker: MakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "gnl_django.runs")
    script = Script(call("mail", to="x"), "done")

    def handle(payload: Any, ctx: JobContext) -> Any:
        return ctx.run(
            model=script, tools={"mail": tool(mail, mode="plain")}, prompt=f"page {ctx.attempt}",
            system=f"system {ctx.attempt}",
        )["messages"]  # fmt: skip

    def mail(to: str) -> None:
        if len(script.seen) == 1:
            script.seen.append([])
            raise ConnectionError

    job_id = declare("t.agent", handle, retry_delay=0).enqueue()
    make_worker().run_until_idle()
    messages = job_of(job_id).result
    assert [message["content"] for message in messages[:2]] == ["system 1", "page 1"]
    assert script.seen[-1][:2] == messages[:2]
    assert run_row(f"job:{job_id}").input == {"prompt": "page 1", "system": "system 1"}
    warned = [record for record in caplog.records if f"job:{job_id}" in record.getMessage()]
    assert len(warned) == 1


@pytest.mark.row("runs", "D82")
def test_a_run_that_was_begun_as_something_else_is_no_conversation() -> None:
    with pytest.raises(ConnectionError):
        run_durable(RUN, Body(ConnectionError()), input={"prompt": "p", "more": 1})
    model = Body("text")
    with pytest.raises(RunInputMismatch):
        run_agent(RUN, model, [], "p")
    assert model.count == 0


@pytest.mark.row("runs", "D83")
def test_two_calls_in_one_reply_are_made_in_order_under_their_own_keys() -> None:
    done: list[Any] = []

    def put(n: int) -> int:
        done.append(n)
        return n

    both = {
        "content": "both",
        "tool_calls": [
            {"id": "same", "name": "put", "arguments": {"n": n}} for n in (2, 1)
        ],
    }  # fmt: skip
    result = run_agent(RUN, Script(both, both, "done"), [put], "go")
    assert done == [2, 1, 2, 1]
    assert keys_of() == [
        *("model", "tool:put", "tool:put#2", "model#2", "tool:put#3", "tool:put#4", "model#3"),
    ]
    tools = [message["content"] for message in result["messages"] if message["role"] == "tool"]
    assert tools == ["2", "1", "2", "1"]


@pytest.mark.row("runs", "D79")
def test_a_tool_may_ask_for_its_step_and_the_signal() -> None:
    seen: list[ToolContext] = []

    def look(where: str, ctx: ToolContext) -> str:
        seen.append(ctx)
        return where

    def alone(ctx: Any) -> str:
        seen.append(ctx)
        return "alone"

    script = Script(call("look", where="here"), call("alone"), "done")
    run_agent(RUN, script, [look, alone], "go")
    assert [ctx.step.idempotency_key for ctx in seen] == [f"{RUN}/tool:look", f"{RUN}/tool:alone"]
    assert not seen[0].signal.revoked
    assert all("ctx" not in str(each["parameters"]) for each in script.tools)


@pytest.mark.row("runs", "D77")
def test_a_tools_parameters_may_have_any_name() -> None:
    def odd(schema: str, copy: int, json: bool, model_config: str, _hidden: int = 3) -> Any:
        return [schema, copy, json, model_config, _hidden]

    asked = {"schema": "s", "copy": 1, "json": True, "model_config": "m"}
    script = Script(call("odd", **asked), call("odd", **asked, _hidden=4), call("odd"), "done")
    run_agent(RUN, script, [odd], "go")
    outputs = [output for key, _, output in steps_of() if key.startswith("tool:")]
    assert outputs[:2] == [["s", 1, True, "m", 3], ["s", 1, True, "m", 4]]
    assert "model_config: Field required" in outputs[2]["error"]
    assert set(script.tools[0]["parameters"]["properties"]) == {*asked, "_hidden"}


@pytest.mark.row("runs", "D77")
def test_a_tool_may_be_any_callable() -> None:
    class Object:
        """Adds."""

        def __call__(self, a: int, b: int = 1) -> int:
            return a + b

    def add(a: int, b: int) -> int:
        return a + b

    box = {"object": Object(), "partial": partial(add, b=5), "method": Shop().charge}
    script = Script(
        call("object", a="1"), call("partial", a="1"), call("method", amount="1"), "done"
    )
    run_agent(RUN, script, box, "go")
    outputs = [output for key, _, output in steps_of() if key.startswith("tool:")]
    assert outputs == [2, 6, {"charged": 1}]


# arguments


@pytest.mark.row("runs", "D81")
def test_wrong_arguments_are_refused_before_anything_is_written() -> None:
    model = Body("text")
    for turns in (0, -1, 1.5, True, "2", None):
        with pytest.raises(ValueError, match="max_turns"):
            run_agent(RUN, model, [], "go", max_turns=turns)  # type: ignore[arg-type]
    for wrong in (None, "model", 7):
        with pytest.raises(TypeError, match="model must be callable"):
            run_agent(RUN, wrong, [], "go")  # type: ignore[arg-type]
    for prompt in (None, 7, b"go", {"a": 1}):
        with pytest.raises(TypeError, match="prompt"):
            run_agent(RUN, model, [], prompt)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="system"):
        run_agent(RUN, model, [], "go", system=7)  # type: ignore[arg-type]
    with pytest.raises(InvalidPayload):
        run_agent(RUN, model, [], "a\0b")
    for wrong in (7, None, "abc", [7], {"a": 7}):
        with pytest.raises(TypeError):
            run_agent(RUN, model, wrong, "go")  # type: ignore[arg-type]
    for twice in ([orders, orders], [orders, tool(Body(), name="orders")]):
        with pytest.raises(ValueError, match="two tools are named 'orders'"):
            run_agent(RUN, model, twice, "go")
    with pytest.raises(ValueError, match="run id"):
        run_agent("", model, [], "go")
    with pytest.raises(TypeError, match="needs a function"):
        run_durable(RUN)
    with pytest.raises(TypeError, match="needs a function"):
        run_durable(RUN, model=model, prompt="go")
    assert (model.count, Run.objects.count()) == (0, 0)


@pytest.mark.row("runs", "D78")
def test_a_model_that_raises_leaves_nothing_recorded_of_its_turn() -> None:
    for error in (ConnectionError("cut off"), Crash()):
        with pytest.raises(type(error)):
            run_agent(RUN, Body(error), Shop().tools, "buy")
    assert steps_of() == []
    assert run_agent(RUN, Script(*EXAMPLE), Shop().tools, "buy")["text"] == "done"
