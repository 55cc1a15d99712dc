"""What users call: execute a run, stop it, look at it, decide a step that nobody can tell about.

`run_durable` either enters the run of the handler it is called in, or takes a run that stands
alone under its own lock (runs.md 3.1, 3.4).
"""

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from typing import Any

from asgiref.sync import sync_to_async

from gnl_django import conf
from gnl_django.core.db import own_transaction
from gnl_django.core.payloads import clean_text
from gnl_django.core.registry import run_owner
from gnl_django.core.revocation import Revocation
from gnl_django.runs import values
from gnl_django.runs.context import AsyncRunContext, RunContext
from gnl_django.runs.entry import StepInfo, entry_of, inside
from gnl_django.runs.journal import acts, journal_for
from gnl_django.runs.models import Run, Step
from gnl_django.runs.owners import Owner, current
from gnl_django.runs.standing import Standing

PAGE_MAX = 200


@dataclass(frozen=True)
class RunInfo:
    """A durable run as `get_run` shows it."""

    run_id: str
    org: str | None
    state: str
    strict: bool
    input: Any
    result: Any
    note: str
    error_class: str
    error: str
    entries: int
    steps: int
    cancel_reason: str
    scheduled_for: datetime | None
    created_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True)
class StepRow:
    """A recorded step as `list_steps` shows it."""

    id: int
    key: str
    ordinal: int
    mode: str
    state: str
    output: Any
    attempt: int
    started_at: datetime
    finished_at: datetime | None
    error: str


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
        return fn(RunContext(entry), *args, **kwargs)

    async def run() -> Any:
        await sync_to_async(begin)()
        return await fn(AsyncRunContext(entry), *args, **kwargs)

    return run()


def _stand(
    standing: Standing, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    entry = standing.enter()
    if standing.has_result:
        return standing.result
    try:
        value = fn(RunContext(entry), *args, **kwargs)
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


def cancel_run(run_id: str, reason: str = "", *, using: str | None = None) -> bool:
    """Ask a durable run to stop; end it at once when nobody executes it.

    The run of a job is canceled with its job. reason: up to 500 characters, the first one is kept.
    Returns False when the run is completed, canceled or unknown, or its owner refuses
    (runs.md R24).
    """
    alias = using or conf.settings().DATABASE
    journal = journal_for(alias)
    words = clean_text(reason, 4 * values.REASON_MAX)[: values.REASON_MAX]
    owner = run_owner(run_id)
    if owner is None:
        return acts.request_cancel(journal, run_id, words, owned=False)
    with own_transaction(journal.connection):  # the owner's row, then the run's
        org = Run.objects.using(alias).filter(run_id=run_id).values_list("org", flat=True).first()
        if not owner.cancel(run_id, org or "", words, alias):
            return False
        acts.request_cancel(journal, run_id, words, owned=True)
    return True


def get_run(run_id: str, *, using: str | None = None) -> RunInfo | None:
    """Return what is known of a run, None when it was never entered (runs.md 3.4)."""
    alias = using or conf.settings().DATABASE
    run = Run.objects.using(alias).filter(run_id=run_id).first()
    if run is None:
        return None
    return RunInfo(
        run_id=run.run_id,
        org=run.org or None,
        state=run.state,
        strict=run.strict,
        input=run.input,
        result=run.result,
        note=run.note,
        error_class=run.error_class,
        error=run.error,
        entries=run.entries,
        steps=run.steps.count(),
        cancel_reason=run.cancel_reason,
        scheduled_for=run.scheduled_for,
        created_at=run.created_at,
        finished_at=run.finished_at,
    )


def list_steps(
    run_id: str, *, after: int = 0, limit: int = PAGE_MAX, using: str | None = None
) -> list[StepRow]:
    """Return up to `limit` (1..200) recorded steps of a run whose ordinal is above `after`.

    In the order in which the code called them. Raises ValueError for a wrong limit (runs.md 3.4).
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= PAGE_MAX:
        raise ValueError(f"limit: {limit!r} is not 1 to {PAGE_MAX}")
    alias = using or conf.settings().DATABASE
    found = Step.objects.using(alias).filter(run__run_id=run_id, ordinal__gt=after)
    names = StepRow.__dataclass_fields__
    rows = found.order_by("ordinal", "id").only(*names)[:limit]
    return [StepRow(**{name: getattr(step, name) for name in names}) for step in rows]


_NOT_GIVEN: Any = object()


def resolve_step(
    run_id: str,
    key: str,
    *,
    output: Any = _NOT_GIVEN,
    rerun: bool = False,
    using: str | None = None,
) -> bool:
    """Decide a side effect of which nobody knows whether it happened; then retry the job.

    output: it happened, and this is what it returned. rerun=True: it did not; the next attempt
    calls it. Exactly one of the two, else ValueError. Returns False when the step is not one to be
    decided: done, being executed, or unknown. Raises InvalidPayload (runs.md R22).
    """
    if (output is _NOT_GIVEN) is not rerun:
        raise ValueError("give either output=.. (it happened) or rerun=True (it did not)")
    text = None if rerun else values.encode(f"step:{key}", output)
    return acts.resolve(journal_for(using or conf.settings().DATABASE), run_id, key, text)
