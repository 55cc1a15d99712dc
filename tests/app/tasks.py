"""Tasks of the tests, for Django 6.0 or newer; on older ones nobody imports this module.

Options are given with `.using()`, because Django 6.0's `@task` passes none on.
"""

import asyncio
import os
import signal
from datetime import timedelta
from threading import Event
from typing import Any

from django.tasks import TaskContext, TaskResult, task

from gnl_django import PermanentFailure

#: What the tasks of this process were called with.
CALLS: list[Any] = []
#: What `backoff` functions were asked, and what they are to answer.
ASKED: list[tuple[str, int]] = []
ANSWER: list[Any] = []
#: Set when an attempt was revoked.
TIMED_OUT = Event()


@task
def add(first: int, second: int = 0) -> int:
    """Return the sum."""
    CALLS.append((first, second))
    return first + second


@task()
def nothing(*args: Any, **kwargs: Any) -> None:
    """Take anything and return None."""


@task
async def add_async(first: int, second: int = 0) -> int:
    """Return the sum, as a coroutine."""
    return first + second


@task(takes_context=True)
def where(context: TaskContext, *, loud: bool = False) -> dict[str, Any]:
    """Return what the context says."""
    result = context.task_result
    return {
        "id": result.id,
        "attempt": context.attempt,
        "status": str(result.status),
        "workers": len(result.worker_ids),
        "loud": loud,
    }


@task(takes_context=True)
async def where_async(context: TaskContext) -> list[Any]:
    """Return what the context says, as a coroutine."""
    return [context.task_result.id, context.attempt]


@task(takes_context=True)
def third_time(context: TaskContext) -> int:
    """Fail twice."""
    if context.attempt < 3:
        raise ValueError(f"failure {context.attempt}")
    return context.attempt


third_time = third_time.using(max_attempts=3, backoff=0)


@task
def fails(text: str = "no") -> None:
    """Always fail."""
    raise ValueError(text)


fails = fails.using(max_attempts=2, backoff=[timedelta(0)])


@task
async def fails_async() -> None:
    """Always fail, as a coroutine."""
    raise ValueError("no")


@task
def gives_up() -> None:
    """Fail for good."""
    raise PermanentFailure("never again")


@task
def leaves(code: int = 3) -> None:
    """Leave, as sys.exit() does."""
    raise SystemExit(code)


def asked(error: BaseException, result: "TaskResult[..., Any]") -> Any:
    """Answer what the test wants."""
    ASKED.append((str(error), result.attempts))
    answer = ANSWER[0]
    if isinstance(answer, Exception):
        raise answer
    return answer


@task
def asks() -> None:
    """Fail, with a function that says when to try again."""
    raise ValueError("asked")


asks = asks.using(backoff=asked)


@task
async def asks_async() -> None:
    """Fail, with a function that says when to try again, as a coroutine."""
    raise ValueError("asked")


asks_async = asks_async.using(backoff=asked)


class Odd(dict[str, Any]):
    """A dict that does not let itself be read."""

    def items(self) -> Any:
        """Raise."""
        raise RuntimeError("odd")

    def __iter__(self) -> Any:
        """Raise."""
        raise RuntimeError("odd")


@task
def returns(what: str) -> Any:
    """Return what no text can name."""
    CALLS.append(what)
    values: dict[str, Any] = {
        "set": {1},
        "bytes": b"x",
        "nan": float("nan"),
        "odd": Odd(),
        "tuple": (1, 2),
        "1 MiB": "x" * (1_048_576 - 2),
        "1 MiB + 1": "x" * (1_048_576 - 1),
    }
    return values[what]


returns = returns.using(backoff=0)


@task
def dies() -> None:
    """Kill the process that runs it."""
    os.kill(os.getpid(), signal.SIGKILL)


@task
def says(text: str) -> str:
    """Print, for a test that reads a worker's output."""
    print(f"task says {text}", flush=True)
    return text


@task
def waits() -> None:
    """Wait until the test has seen the timeout."""
    TIMED_OUT.wait(30)
    TIMED_OUT.clear()


@task(backend="dummy")
def elsewhere(number: int) -> int:
    """Be declared for a backend that is not ours."""
    return number


@task
async def waits_async() -> None:
    """Wait for ever, as a coroutine."""
    await asyncio.Event().wait()
