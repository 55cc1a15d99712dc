"""An agent's tools: functions with a name, a schema and a promise around crashes.

What a model asks for wrongly is an answer to the model, not an error of the run: an unknown
argument, a value of another type, or a ToolError raised by the tool (runs.md R30, R31).
"""

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from gnl_django.core.revocation import Revocation
from gnl_django.errors import ToolError
from gnl_django.runs import steps, values
from gnl_django.runs.entry import StepInfo, inside

Mode = Literal["side_effect", "plain", "atomic"]
CLAIM_TTL = 30
NAME_MAX = 128
_VARIABLE = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


@dataclass(frozen=True)
class ToolContext:
    """What a tool with a parameter named `ctx` gets: its step, and the run's signal (R31)."""

    step: StepInfo
    signal: Revocation


class Tool:
    """A function that a model may call."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        mode: Mode = "side_effect",
        recover: Callable[[StepInfo], Any] | None = None,
        claim_ttl: int = CLAIM_TTL,
    ) -> None:
        if not callable(function):
            raise TypeError(f"a tool must be callable, not {type(function).__name__}")
        if mode not in typing.get_args(Mode):
            raise ValueError(f"mode: {mode!r} is not one of {', '.join(typing.get_args(Mode))}")
        if name is None:
            name = getattr(function, "__name__", "")
        self.function = function
        for parameter in self._parameters.values():
            if parameter.kind is parameter.POSITIONAL_ONLY:
                raise TypeError(f"a model gives names, but {parameter.name!r} is positional-only")
        self.name = values.check_step_name(values.check_text("tool name", name, NAME_MAX))
        self.mode = mode
        effect = mode == "side_effect"
        self.how: dict[str, Any] = {
            "side_effect": effect,
            "recover": recover,
            "claim_ttl": claim_ttl if effect else None,
            "atomic": mode == "atomic",
        }
        steps.options(function, **self.how)  # here, not at the first call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    @cached_property
    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.function).parameters

    @cached_property
    def _arguments(self) -> type[BaseModel]:
        hints = typing.get_type_hints(_written(self.function), include_extras=True)
        # Under aliases: a parameter may be called what a model's own attributes are called.
        fields: dict[str, Any] = {
            f"parameter_{at}": (
                hints.get(name, Any),
                Field(
                    ... if parameter.default is parameter.empty else parameter.default, alias=name
                ),
            )
            for at, (name, parameter) in enumerate(self._parameters.items())
            if name != "ctx" and parameter.kind not in _VARIABLE
        }
        config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
        return create_model(self.name, __config__=config, **fields)

    @cached_property
    def description(self) -> dict[str, Any]:
        """What the model is told of the tool."""
        return {
            "name": self.name,
            "description": inspect.getdoc(self.function) or "",
            "parameters": self._arguments.model_json_schema(),
        }

    def call(self, arguments: dict[str, Any]) -> Callable[[], Any]:
        """Return the body of the step that calls the tool."""
        if not inspect.iscoroutinefunction(self.function):
            return lambda: self._answer(arguments)

        async def answer() -> Any:
            try:
                return await self.function(**self._checked(arguments))
            except ToolError as error:
                return {"error": str(error)}

        return answer

    def _answer(self, arguments: dict[str, Any]) -> Any:
        try:
            return self.function(**self._checked(arguments))
        except ToolError as error:
            return {"error": str(error)}

    def _checked(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments as the function's types; ToolError says what does not fit."""
        try:
            found = self._arguments.model_validate(arguments)
        except ValidationError as error:
            faults = error.errors(include_url=False, include_context=False, include_input=False)
            said = "; ".join(
                f"{'.'.join(map(str, fault['loc'])) or 'arguments'}: {fault['msg']}"
                for fault in faults
            )
            raise ToolError(f"wrong arguments: {said}") from None
        passed = {
            field.alias or name: getattr(found, name)
            for name, field in type(found).model_fields.items()
        }
        here = inside.get()
        if "ctx" in self._parameters and here is not None:
            passed["ctx"] = ToolContext(here[1], here[0].signal)
        return passed


def _written(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what carries the annotations of a callable."""
    while isinstance(function, partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__


def _default(parameter: inspect.Parameter) -> Any:
    return ... if parameter.default is parameter.empty else parameter.default


def tool(
    fn: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    mode: Mode = "side_effect",
    recover: Callable[[StepInfo], Any] | None = None,
    claim_ttl: int = CLAIM_TTL,
) -> Any:
    """Say how an agent may call `fn`; also a decorator, with or without arguments.

    mode: "side_effect" (at most once; the default), "plain" (again after a crash) or "atomic"
    (exactly once, in this database). recover, claim_ttl (seconds): as for a side-effect step.
    Raises TypeError, ValueError (runs.md 3.5).
    """

    def make(function: Callable[..., Any]) -> Tool:
        return Tool(function, name=name, mode=mode, recover=recover, claim_ttl=claim_ttl)

    return make if fn is None else make(fn)


def toolbox(tools: Mapping[str, Any] | Iterable[Any]) -> dict[str, Tool]:
    """Return tools by name; ValueError for a name given twice."""
    pairs: list[tuple[str | None, Any]] = (
        list(tools.items()) if isinstance(tools, Mapping) else [(None, item) for item in tools]
    )
    box: dict[str, Tool] = {}
    for name, item in pairs:
        made = item if isinstance(item, Tool) and name in {None, item.name} else None
        if made is None:
            given = item if isinstance(item, Tool) else Tool(item, name=name)
            made = given if name is None else _renamed(given, name)
        if made.name in box:
            raise ValueError(f"two tools are named {made.name!r}")
        box[made.name] = made
    return box


def _renamed(given: Tool, name: str) -> Tool:
    return Tool(
        given.function,
        name=name,
        mode=given.mode,
        recover=given.how["recover"],
        claim_ttl=given.how["claim_ttl"] or CLAIM_TTL,
    )
