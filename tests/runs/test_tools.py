"""Tools: names, modes, schemas, and what a model gets told."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import pytest
from pydantic import Field

from gnl_django import ToolError, tool
from gnl_django.runs.tools import Tool, toolbox


def add(a: int, b: int = 1, *rest: int, **more: int) -> int:
    """Add two numbers.

    That is all.
    """
    return a + b


def test_a_tool_is_described_by_its_signature() -> None:
    described = tool(add).description
    assert described["name"] == "add"
    assert described["description"] == "Add two numbers.\n\nThat is all."
    assert described["parameters"]["properties"] == {
        "a": {"title": "A", "type": "integer"},
        "b": {"title": "B", "type": "integer", "default": 1},
    }
    assert described["parameters"]["required"] == ["a"]
    assert described["parameters"]["additionalProperties"] is False


def test_annotated_parameters_keep_their_limits() -> None:
    def pick(n: Annotated[int, Field(gt=0, description="how many")], anything=None) -> Any:  # type: ignore[no-untyped-def]
        return [n, anything]

    made = tool(pick)
    assert made.description["parameters"]["properties"]["n"]["description"] == "how many"
    assert made.call({"n": 1, "anything": {"x": [1]}})() == [1, {"x": [1]}]
    assert "greater than 0" in made.call({"n": 0})()["error"]


def test_a_tool_is_still_a_function() -> None:
    @tool
    def plain(a: int) -> int:
        return a

    @tool(name="other", mode="atomic")
    def renamed(a: int) -> int:
        return a

    assert isinstance(plain, Tool)
    assert (plain(1), renamed(a=2)) == (1, 2)
    assert (plain.name, plain.mode, renamed.name, renamed.mode) == (
        "plain", "side_effect", "other", "atomic",
    )  # fmt: skip


def test_an_error_of_a_tool_is_an_answer_any_other_passes() -> None:
    def fails(what: str) -> None:
        raise ToolError("not today") if what == "tool" else LookupError(what)

    made = tool(fails)
    assert made.call({"what": "tool"})() == {"error": "not today"}
    with pytest.raises(LookupError):
        made.call({"what": "other"})()


async def coroutine(a: int) -> int:
    return a


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: tool(add, mode="exactly"), ValueError),  # type: ignore[arg-type]
        (lambda: tool(5), TypeError),  # type: ignore[arg-type]
        (lambda: tool(add, name=""), ValueError),
        (lambda: tool(add, name="a#b"), ValueError),
        (lambda: tool(add, name="x" * 129), ValueError),
        (lambda: tool(add, name=7), TypeError),  # type: ignore[arg-type]
        (lambda: tool(partial(add)), ValueError),
        (lambda: tool(add, mode="plain", recover=print), TypeError),
        (lambda: tool(add, recover=5), TypeError),  # type: ignore[arg-type]
        (lambda: tool(add, claim_ttl=0), ValueError),
        (lambda: tool(add, claim_ttl=1.5), TypeError),  # type: ignore[arg-type]
        (lambda: tool(coroutine, mode="atomic"), TypeError),
        (lambda: toolbox({"": add}), ValueError),
        (lambda: toolbox({7: add}), TypeError),  # type: ignore[dict-item]
        (lambda: toolbox([add, add]), ValueError),
    ],
)
def test_wrong_tools_are_refused_when_they_are_made(
    make: Callable[[], Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        make()


def test_a_mapping_gives_names_and_keeps_promises() -> None:
    made = tool(add, recover=print, claim_ttl=7)
    box = toolbox({"plus": made, "add": made, "sum": tool(add, mode="plain"), "raw": add})
    assert list(box) == ["plus", "add", "sum", "raw"]
    assert box["add"] is made
    assert (box["plus"].name, box["plus"].how) == ("plus", made.how)
    assert (box["sum"].mode, box["raw"].mode) == ("plain", "side_effect")
    assert box["raw"].how["claim_ttl"] == 30
    assert toolbox(iter([made]))["add"] is made
    assert toolbox({}) == toolbox([]) == {}


def test_a_parameter_without_a_name_to_pass_it_by_is_refused_at_once() -> None:
    def half(value: int, /) -> float:
        return value / 2

    with pytest.raises(TypeError, match="'value' is positional-only"):
        tool(half)
