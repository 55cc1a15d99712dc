"""Handlers that child processes of the tests run; tests in this process declare their own.

`tests.act` says on standard output when it starts and ends, which a test waits for with
`Proc.wait_line`, and counts as the effect of the job. What it does is asked for in the payload and
done at the first attempt only, unless `always`.
"""

import os
import signal
from threading import Event
from typing import Literal

from pydantic import BaseModel

from gnl_django import JobContext, PermanentFailure, cancel_job, job

LONG = 90.0  # seconds; no test lets a handler wait as long


class Act(BaseModel):
    """What to do: end at once, fail, wait for the signal, pay no heed to it, .."""

    do: Literal["end", "fail", "bury", "die", "cancel", "wait", "ignore", "short"] = "end"
    always: bool = False


@job("tests.act")
def act(payload: Act, ctx: JobContext) -> str:
    """Do what the payload asks for."""
    print(f"act {ctx.job_id} attempt {ctx.attempt} starts", flush=True)
    if payload.always or ctx.attempt == 1:
        do(payload.do, ctx)
    print(f"act {ctx.job_id} attempt {ctx.attempt} ends", flush=True)
    return f"attempt {ctx.attempt}"


def do(what: str, ctx: JobContext) -> None:
    """Act on the first attempt."""
    if what == "fail":
        raise ValueError("asked to fail")
    if what == "bury":
        raise PermanentFailure("asked to fail for good")
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "cancel":
        cancel_job(ctx.job_id, "asked for by the job itself")
        ctx.signal.wait(LONG)
    elif what == "wait":
        ctx.signal.wait(LONG)
    elif what == "ignore":
        Event().wait(LONG)
    elif what == "short":
        Event().wait(0.5)


@job("tests.quick")
def quick(payload: int) -> int:
    """End at once and say nothing: there are many of them."""
    return payload
