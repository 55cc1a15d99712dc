"""`TaskKind`: the kind of a Task's jobs, and one attempt at its function.

Entered into the registry of kinds when a Task is validated; from then on the worker treats it as
any other kind (queue.md R55-R58). The module that holds the function is found through the function,
never through a row.
"""

import inspect
import json
import logging
import sys
from asyncio import CancelledError
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import Any

from asgiref.sync import sync_to_async
from django.db import DatabaseError, InterfaceError
from django.dispatch import Signal
from django.tasks import Task, TaskContext
from django.tasks.exceptions import InvalidTask
from django.tasks.signals import (
    log_task_finished,
    log_task_started,
    task_finished,
    task_started,
)
from django.utils.json import normalize_json

from gnl_django.core import backoff as delays
from gnl_django.core import payloads
from gnl_django.errors import (
    Deferral,
    ExecutionRevoked,
    InvalidPayload,
    InvalidResult,
    PayloadIssue,
    PermanentFailure,
)
from gnl_django.queue import options as opt
from gnl_django.queue.context import AsyncJobContext, JobContext
from gnl_django.queue.kinds import JobKind
from gnl_django.queue.outcomes import Judged
from gnl_django.queue.store.base import ClaimedRow
from gnl_django.queue.store.looks import look
from gnl_django.queue.tasks import results
from gnl_django.queue.tasks.task import (
    AnyTask,
    Result,
    backoff_of,
    extra_of,
    marked,
    timeout_of,
)

logger = logging.getLogger(__name__)

RESULT_MAX_BYTES = 1_048_576

Context = JobContext | AsyncJobContext


class TaskKind(JobKind[Callable[..., Any]]):
    """The kind of one Task function; its payload is `{"args": [..], "kwargs": {..}}`."""

    wants_finals = True
    result_max_bytes = RESULT_MAX_BYTES

    def __init__(self, task: AnyTask) -> None:
        # Not the base's: what it takes from a declaration is asked of the Task here.
        self.kind = task.module_path
        self.func = task.func
        self.sensitive = False
        self.retry_delay = None
        self.handler = self._arun if inspect.iscoroutinefunction(task.func) else self._run
        self._first = task

    @property
    def task(self) -> AnyTask:
        """The definition: the Task that bears the function's name in its module, else the first.

        So `send = task(send).using(timeout=5)` defines the task, on every Django.
        """
        module = sys.modules.get(self.func.__module__)
        found = getattr(module, self.func.__qualname__, None)
        return found if isinstance(found, Task) and found.func is self.func else self._first

    @property
    def origin(self) -> str:
        """Module and qualified name of the function."""
        return self.kind

    @property
    def queue(self) -> str:  # type: ignore[override]
        """The definition's queue."""
        return self.task.queue_name

    @property
    def priority(self) -> int:  # type: ignore[override]
        """The definition's priority."""
        return self.task.priority

    @property
    def max_attempts(self) -> int:
        """The definition's number of attempts."""
        return extra_of(self.task).max_attempts

    def hold_of(self, row: ClaimedRow) -> float | None:
        """Return the job's own timeout, else the definition's."""
        return timeout_of(self.task, marked(json.loads(row.meta)))

    # the arguments

    @cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.signature(self.func)

    def bind(self, args: Any, kwargs: Any) -> None:
        """Raise TypeError when the function does not take these arguments."""
        first = [None] if self.task.takes_context else []
        self._signature.bind(*first, *args, **kwargs)

    def encode(self, payload: Any, *, max_bytes: int) -> str:
        """Return the arguments as canonical JSON (queue.md R55).

        Raises TypeError for arguments that the function does not take or of a type that is never
        JSON, InvalidPayload for all else that is not strict JSON.
        """
        if (fault := _form(payload)) is not None:
            raise InvalidPayload(self.kind, [PayloadIssue("/", fault)])
        self.bind(payload["args"], payload["kwargs"])
        try:
            return payloads.encode(self.kind, payload, max_bytes=max_bytes)
        except InvalidPayload:
            with suppress(ValueError, RecursionError):
                normalize_json(payload)  # raises Django's TypeError where Django would
            raise

    def decode(self, text: str | None) -> Any:
        """Return the stored arguments; InvalidPayload when the function no longer takes them."""
        payload: Any = None if text is None else json.loads(text)
        fault = _form(payload)
        if fault is None:
            try:
                self.bind(payload["args"], payload["kwargs"])
            except TypeError as error:
                fault = str(error)
        if fault is not None:
            raise InvalidPayload(self.kind, [PayloadIssue("/", fault)])
        return payload

    # one attempt

    def _run(self, payload: dict[str, Any], ctx: JobContext) -> Any:
        result = self._started(ctx)
        task_started.send_robust(sender=sender_of(result), task_result=result)
        try:
            return self._checked(self.func(*self._args(payload, result), **payload["kwargs"]), ctx)
        except BaseException as error:
            if (judged := self._judge(error, result, ctx)) is not None:
                raise judged from None
            raise

    async def _arun(self, payload: dict[str, Any], ctx: AsyncJobContext) -> Any:
        if self._watched:
            result = await sync_to_async(self._look)(ctx)
            await task_started.asend_robust(sender=sender_of(result), task_result=result)
        else:  # a hop between threads would cost more than most tasks
            result = results.sketch(ctx.job_id, self.task, "running")
            task_started.send_robust(sender=sender_of(result), task_result=result)
        try:
            value = await self.func(*self._args(payload, result), **payload["kwargs"])
            return self._checked(value, ctx)
        except BaseException as raised:
            error = raised
            if isinstance(raised, CancelledError):
                if ctx.signal.why != "timeout":
                    raise
                error = ExecutionRevoked("timeout")
            trace = error.__traceback__
            judged = await self._ajudge(error, result, ctx)
            error.__traceback__ = trace  # without the way through another thread
            if judged is not None:
                raise judged from None
            raise

    @property
    def _watched(self) -> bool:
        """Whether somebody looks at the running result; else a sketch of it will do."""
        return self.task.takes_context or heard(task_started, log_task_started)

    def _started(self, ctx: JobContext) -> Result:
        if self._watched:
            return self._look(ctx)
        return results.sketch(ctx.job_id, self.task, "running")

    def _look(self, ctx: Context) -> Result:
        """Return the result as it stands at the start of the attempt."""
        try:
            stored = look(ctx.using, ctx.job_id, token=ctx.claim_token)
        except (DatabaseError, InterfaceError) as error:
            # Not the function's fault: it has not been called yet.
            raise Deferral("the task's row cannot be read") from error
        if stored is None:
            raise ExecutionRevoked("lease-lost")
        return results.result_of(stored, self.task, self.task.backend)

    def _args(self, payload: dict[str, Any], result: Result) -> list[Any]:
        args: list[Any] = payload["args"]
        return [TaskContext(task_result=result), *args] if self.task.takes_context else args

    def _checked(self, value: Any, ctx: Context) -> Any:
        """Return a value that can be stored; else the task has failed for good (queue.md R58)."""
        if ctx.signal.why == "timeout":
            raise ExecutionRevoked("timeout")
        if value is not None:
            try:
                payloads.encode(self.kind, value, max_bytes=RESULT_MAX_BYTES)
            except InvalidPayload as error:
                faults = "; ".join(map(str, error.issues))
                raise InvalidResult(f"return value of {self.kind}: {faults}") from None
            except Exception as error:  # noqa: BLE001 - as in outcomes: a class of the user's
                name = type(error).__name__
                raise InvalidResult(f"return value of {self.kind}: {name}") from None
        return value

    def _judge(self, error: BaseException, result: Result, ctx: Context) -> Judged | None:
        """Return the failure with the task's own delay, None where that has no say."""
        lost = ctx.signal.why in {"canceled", "lease-lost"}
        if lost or isinstance(error, (Deferral, PermanentFailure)):
            return None
        backoff = backoff_of(self.task, marked(ctx.meta))
        if backoff is None or ctx.attempt >= ctx.max_attempts:
            return None
        try:
            if not callable(backoff):
                return Judged(error, delays.retry_delay(backoff, ctx.attempt, error))
            delay = backoff(error, self._look(ctx) if result.enqueued_at is None else result)
            return Judged(error, None if delay is None else delays.seconds(delay))
        except Exception as problem:  # noqa: BLE001 - the user's function may raise anything
            logger.warning(
                "backoff of %s gives no delay (%s); the default is taken",
                self.kind,
                type(problem).__name__,
            )
            return None

    async def _ajudge(
        self, error: BaseException, result: Result, ctx: AsyncJobContext
    ) -> Judged | None:
        if callable(backoff_of(self.task, marked(ctx.meta))):
            return await sync_to_async(self._judge)(error, result, ctx)
        return self._judge(error, result, ctx)

    # the end

    def finished(self, job_id: int, state: str, using: str, error: BaseException | None) -> None:
        """Send `task_finished` with the stored result, where the error can be seen (R58)."""
        result = results.sketch(job_id, self.task, state)
        if heard(task_finished, log_task_finished):
            stored = look(using, job_id)
            if stored is None:
                return
            result = results.result_of(stored, self.task, self.task.backend)
        if error is None:
            task_finished.send_robust(sender=sender_of(result), task_result=result)
            return
        trace = error.__traceback__
        try:
            raise error  # noqa: TRY301
        except BaseException:  # noqa: BLE001 - receivers look at sys.exc_info()
            task_finished.send_robust(sender=sender_of(result), task_result=result)
        finally:
            error.__traceback__ = trace


def heard(signal: Signal, own: Callable[..., Any]) -> bool:
    """Tell whether anybody but Django's own log, its receiver `own`, listens to a signal."""
    return [entry[0][0] for entry in signal.receivers] != [id(own)]


def sender_of(result: Result) -> type:
    """Return who sends the signals of a result: its backend's class."""
    return type(results.backend_of(result.backend))


def _form(payload: Any) -> str | None:
    if (
        isinstance(payload, dict)
        and set(payload) == {"args", "kwargs"}
        and isinstance(payload["args"], (list, tuple))
        and isinstance(payload["kwargs"], dict)
    ):
        return None
    return 'the payload of a task is {"args": [..], "kwargs": {..}}'


def register(task: AnyTask) -> TaskKind:
    """Return the kind of a task, entered into the registry when it is not there yet.

    Raises InvalidTask when its path cannot be a kind, or is the kind of a job.
    """
    path = task.module_path
    known = opt.kinds.known(path)
    if isinstance(known, TaskKind) and known.func is task.func:
        return known
    if known is not None and not isinstance(known, TaskKind):
        raise InvalidTask(f"{path!r} is the kind of a job already")
    try:
        opt.check_name("kind", path, opt.KIND_MAX)
    except ValueError as error:
        raise InvalidTask(f"the path of a task's function is its kind. {error}") from error
    if path.startswith("gnl."):
        raise InvalidTask(f"{path!r} begins with the reserved 'gnl.'")
    made = TaskKind(task)
    opt.kinds.register(path, made)
    return made
