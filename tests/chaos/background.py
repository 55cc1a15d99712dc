"""Handlers of the fault tests: they do what the payload asks for and write down what they did."""

import asyncio
import ctypes
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

from django.db import connections, transaction
from pydantic import BaseModel

from gnl_django import JobContext, PermanentFailure, cancel_job, job
from tests.chaos.durable import agent, durable  # noqa: F401 - their kinds belong to the app
from tests.chaos.telling import effects

LONG = 60.0


class Work(BaseModel):
    """What to do, at the first attempt only unless `always`; `m` marks the call that gave it."""

    m: str
    do: str = "end"
    always: bool = False
    seconds: float = 0.0


@contextmanager
def written(payload: Work, ctx: JobContext, **more: Any) -> Iterator[None]:
    """Write start, revoked and end of an attempt to the effect log, if there is one."""
    log = effects()
    if log is None:
        yield
        return
    log.attempt("start", ctx, m=payload.m, payload=payload.model_dump(), **more)
    ctx.signal.on_revoke(
        lambda: log.write(
            e="revoked", job=ctx.job_id, token=ctx.claim_token, why=ctx.signal.why or ""
        )
    )
    outcome = "failed"
    try:
        if (payload.do, ctx.attempt) == ("hold", 1) or (payload.do == "gate" and ctx.attempt > 1):
            wait_for_gate(log.path.parent)
        yield
        outcome = "ok"
    finally:
        log.attempt("end", ctx, blind=True, outcome=outcome)


@job("chaos.work", retry_delay=0.05, max_attempts=25)
def work(payload: Work, ctx: JobContext) -> str:
    """Do what is asked."""
    with written(payload, ctx):
        if payload.always or ctx.attempt == 1:
            act(payload, ctx)
    return payload.m


@job("chaos.held", retry_delay=0.05, max_hold=0.3)
def held(payload: Work, ctx: JobContext) -> str:
    """As chaos.work, but asked to stop after 0.3 s."""
    with written(payload, ctx, max_hold=0.3):
        if payload.always or ctx.attempt == 1:
            act(payload, ctx)
    return payload.m


def act(payload: Work, ctx: JobContext) -> None:
    """Do one thing, good or bad."""
    do = payload.do
    if do == "fail":
        raise ValueError("asked to fail")
    if do == "bury":
        raise PermanentFailure("asked to fail for good")
    if do == "big":
        raise ValueError("x" * 8_000)
    if do == "wait":
        ctx.signal.wait(payload.seconds or LONG)
    elif do == "ignore":
        Event().wait(payload.seconds or LONG)
    elif do in WITH_CONTEXT:
        WITH_CONTEXT[do](ctx)
    elif do not in {"end", "gate", "hold"}:
        hostile(do)


def cancel_itself(ctx: JobContext) -> None:
    """Be canceled while it runs."""
    cancel_job(ctx.job_id, "by itself")
    ctx.signal.wait(LONG)


def wait_for_gate(directory: Path) -> None:
    """Wait until the test opens the gate: it makes a file of this name."""
    pause, until = Event(), monotonic() + LONG
    while not (directory / "gate").exists() and monotonic() < until:
        pause.wait(0.01)


def hold_the_gil(ctx: JobContext) -> None:
    """Let no thread of this process run until the test opens the FIFO; then look at the signal.

    As a regular expression does that runs away, but for exactly as long as the test wants.
    """
    log = effects()
    assert log is not None
    path = os.fsencode(log.path.parent / "hog")
    library = ctypes.PyDLL(None)  # calls into it keep the GIL
    library.close(library.open(path, os.O_RDONLY))  # waits until somebody opens it for writing
    ctx.signal.wait(LONG)


def hostile(do: str) -> None:
    """Behave as no handler should (reliability F25)."""
    if do in RAISED:
        raise RAISED[do]
    DONE[do]()


def fork() -> None:
    """Make a child that ends at once."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def close_connections() -> None:
    """Close Django's connections of this thread."""
    for connection in connections.all(initialized_only=True):
        connection.close()


def break_connection() -> None:
    """Break the slot's own database connection below Django's feet."""
    connection = connections["default"]
    connection.ensure_connection()
    if connection.vendor == "postgresql":
        connection.connection.pgconn.finish()
    else:
        connection.connection.close()


def endless() -> None:
    """Recurse until Python has had enough."""
    endless()


RAISED: dict[str, BaseException] = {
    "SystemExit": SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt(),
    "GeneratorExit": GeneratorExit(),
    "MemoryError": MemoryError(),
    "CancelledError": asyncio.CancelledError(),
    "StopIteration": StopIteration(),
}
WITH_CONTEXT: dict[str, Callable[[JobContext], None]] = {
    "cancel": cancel_itself,
    "hog": hold_the_gil,
}
DONE: dict[str, Callable[[], object]] = {
    "die": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "recursion": endless,
    "fork": fork,
    "close": close_connections,
    "break": break_connection,
    "transaction": lambda: transaction.set_autocommit(False),
    "signals": lambda: signal.raise_signal(signal.SIGWINCH),
    "exit": lambda: os._exit(7),
}
