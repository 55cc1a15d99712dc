"""What users call to execute a run.

`run_durable` either enters the run of the handler it is called in, or takes a run that stands
alone under its own lock (runs.md 3.1).
"""

import asyncio
import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

from asgiref.sync import sync_to_async

from gnl_django import conf
from gnl_django.core.revocation import Revocation
from gnl_django.runs import values
from gnl_django.runs.context import AsyncRunContext, RunContext
from gnl_django.runs.entry import Entry, StepInfo, entry_of, inside
from gnl_django.runs.owners import Owner, current
from gnl_django.runs.standing import Standing


def run_durable(
    run_id: str,
    fn: Callable[..., Any] | None = None,
    *args: Any,
    input: Any = None,  # noqa: A002 - the run's word for it
    strict: bool = True,
    signal: Revocation | None = None,
    org: str | None = None,
    using: str | None = None,
    **kwargs: Any,
) -> Any:
    """Call `fn(run, *args, **kwargs)` and return its result; what was done before is not repeated.

    `run` is a RunContext (AsyncRunContext for a coroutine function; then an awaitable is returned).
    Entering the same run id again, in any process, skips every step that is recorded. A run that
    has completed returns its stored result.

    run_id: 1..255 printable characters; ids beginning with `job:`, `sched:`, `wf:`, `evt:` belong
    to their handlers. input: JSON, frozen by the first call that gives one. strict: whether a
    changed order of steps or another input is an error. signal: what tells the function to stop;
    default: that of the handler it is called in. org: owner, set by the first call. Without `fn`,
    `model`, `tools` and `prompt` run an agent (see `run_agent`).

    Raises RunBusy while another process executes the run, RunCanceled, RunInputMismatch,
    NonDeterministicRun, ExecutionRevoked, StaleClaim, ValueError, TypeError, and whatever `fn`
    raises (runs.md 3.1, R1-R9).
    """
    owner = current.get()
    if fn is None:
        options = {"signal": signal, "org": org, "using": using}
        return _agent(run_id, {**kwargs, **options})
    if owner is not None and run_id == owner.run_id:
        return _within(owner, fn, args, kwargs, given=input, strict=strict)
    checked = values.check_run_id(run_id)
    if not callable(fn):
        raise TypeError(f"a durable run needs a function, not {type(fn).__name__}")
    standing = Standing(
        checked,
        using or conf.settings().DATABASE,
        org="" if org is None else values.check_text("org", org, values.ORG_MAX),
        strict=strict,
        text=None if input is None else values.encode(f"run:{checked}", input),
        signal=signal,
        owner=owner,
    )
    if inspect.iscoroutinefunction(fn):
        return _stand_async(standing, fn, args, kwargs)
    return _stand(standing, fn, args, kwargs)


def _agent(run_id: str, given: dict[str, Any]) -> Any:
    if not given.keys() >= {"model", "tools", "prompt"}:
        raise TypeError("a durable run needs a function, or model=, tools= and prompt=")
    agent = import_module("gnl_django.runs.agent")  # which needs us
    return agent.run_agent(run_id, **given)


def run_in(
    owner: Owner,
    fn: Callable[..., Any] | None,
    args: tuple[Any, ...],
    options: dict[str, Any],
) -> Any:
    """Do what `ctx.run` of a handler asks for, whatever thread or task calls it."""
    token = current.set(owner)
    try:
        if fn is None:
            return _agent(owner.run_id, options)
        given, strict = options.pop("input", None), options.pop("strict", True)
        return _within(owner, fn, args, options, given=given, strict=strict)
    finally:
        current.reset(token)


def _within(
    owner: Owner,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    given: Any = None,
    strict: bool = True,
) -> Any:
    """Call `fn` in the run of a handler's attempt; its owner writes the outcome (R3, R7, R9)."""
    entry = entry_of(owner)
    text = None if given is None else values.encode(f"run:{entry.run_id}", given)

    def begin() -> None:
        if entry.row is None:
            entry.enter(strict=strict, text=text)
        if text is not None:
            entry.give_input(text)

    if not inspect.iscoroutinefunction(fn):
        begin()
        return _call(fn, entry, args, kwargs)

    async def run() -> Any:
        await sync_to_async(begin)()
        return await fn(AsyncRunContext(entry), *args, **kwargs)

    return run()


def _call(
    fn: Callable[..., Any], entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    value = fn(RunContext(entry), *args, **kwargs)
    if inspect.iscoroutine(value):
        value.close()
        raise TypeError("the run gave a coroutine back: pass the coroutine function itself")
    return value


def _stand(
    standing: Standing, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    entry = standing.enter()
    if standing.has_result:
        return standing.result
    try:
        value = _call(fn, entry, args, kwargs)
    except BaseException as error:
        standing.failed(error)
        raise
    return standing.returned(value)


async def _stand_async(
    standing: Standing, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    try:
        entry = await sync_to_async(standing.enter)()
    except asyncio.CancelledError:  # the thread goes on and enters all the same
        await sync_to_async(standing.abandon)()
        raise
    if standing.has_result:
        return standing.result
    try:
        value = await fn(AsyncRunContext(entry), *args, **kwargs)
    except BaseException as error:
        await sync_to_async(standing.failed)(error)
        raise
    return await sync_to_async(standing.returned)(value)


def current_step() -> StepInfo | None:
    """Return the step whose body calls this, None outside of one; its `idempotency_key` is the
    same in every attempt (runs.md 3.2).
    """
    here = inside.get()
    return None if here is None else here[1]
