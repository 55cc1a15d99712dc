"""A pydantic-ai agent inside a durable run: its model's answers and its tools' results are steps.

Needs the extra `pydantic-ai`. Built on the library's own seams, `WrapperModel` and
`WrapperToolset`: what was recorded is replayed, so a killed process neither asks the model again
for what it answered nor calls a tool again that was recorded (runs.md R28).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic_ai import Agent, ModelRetry
from pydantic_ai.agent import AgentRunResult
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters, infer_model
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext as ToolRunContext
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool, WrapperToolset

from gnl_django.queue.context import AsyncJobContext
from gnl_django.runs.context import AsyncRunContext

Mode = Literal["side_effect", "plain"]
Run = AsyncRunContext | AsyncJobContext


async def run_agent(
    run: Run,
    agent: Agent[Any, Any],
    prompt: str | Sequence[Any] | None = None,
    *,
    modes: Mapping[str, Mode] | None = None,
    **options: Any,
) -> AgentRunResult[Any]:
    """Run `agent` on `prompt` with every model request and every tool call as a recorded step.

    run: the `ctx` of an `async def` job handler, or the run that `run_durable` gives a coroutine
    function. prompt and options: as for `Agent.run`; give the same ones on every attempt, or freeze
    them with the run's input. modes: for a tool's name "plain" (called again when a crash came
    before its record) instead of "side_effect" (at most once).

    Model requests are plain steps named `model`, tool calls steps named `tool:<name>`, one after
    another. What a tool returns must be JSON; `ModelRetry` is recorded as the answer it is.
    Streaming is refused (pydantic-ai's UserError): a stream cannot be recorded before it is used.
    Returns what `Agent.run` returns. Raises TypeError without a model, and what `run.step` raises.
    """
    if agent.model is None and "model" not in options:
        raise TypeError("the agent has no model; give it one, or pass model=")
    model: Any = options.pop("model", None) or agent.model
    toolsets = [
        _DurableToolset(toolset, run=run, modes=dict(modes or {})) for toolset in agent.toolsets
    ]
    with (
        agent.override(model=_DurableModel(infer_model(model), run), toolsets=toolsets, tools=[]),
        agent.parallel_tool_call_execution_mode("sequential"),
    ):
        return await agent.run(prompt, **options)


class _DurableModel(WrapperModel):
    """Asks the wrapped model in a step."""

    def __init__(self, wrapped: Model, run: Run) -> None:
        super().__init__(wrapped)
        self._run = run

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        async def ask() -> Any:
            reply = await self.wrapped.request(messages, model_settings, model_request_parameters)
            return ModelMessagesTypeAdapter.dump_python([reply], mode="json")

        (reply,) = ModelMessagesTypeAdapter.validate_python(await self._run.step("model", ask))
        assert isinstance(reply, ModelResponse)  # noqa: S101 - what was recorded
        return reply

    def request_stream(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse."""
        raise UserError(
            "a durable agent does not stream, because an answer is recorded before it is used: "
            "run it without an event_stream_handler, or outside of the durable run"
        )


@dataclass
class _DurableToolset(WrapperToolset[Any]):
    """Calls the wrapped tools in steps."""

    run: Run = field(kw_only=True)
    modes: Mapping[str, Mode] = field(kw_only=True)

    async def call_tool(
        self,
        name: str,
        tool_args: dict[str, Any],
        ctx: ToolRunContext[Any],
        tool: ToolsetTool[Any],
    ) -> Any:
        async def call() -> Any:
            try:
                return {"returned": await self.wrapped.call_tool(name, tool_args, ctx, tool)}
            except ModelRetry as retry:  # an answer to the model, not a failure of ours
                return {"retry": retry.message}

        side_effect = self.modes.get(name, "side_effect") == "side_effect"
        said = await self.run.step(f"tool:{name}", call, side_effect=side_effect)
        if "retry" in said:
            raise ModelRetry(said["retry"])
        return said["returned"]

    def visit_and_replace(self, visitor: Any) -> AbstractToolset[Any]:
        """Stay around whatever replaces the wrapped toolset."""
        return _DurableToolset(
            self.wrapped.visit_and_replace(visitor), run=self.run, modes=self.modes
        )
