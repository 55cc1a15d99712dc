"""The measured handler: found by the worker as in any app, and called by the producer's side.

`BENCH_HANDLER` chooses its form: `typed` as the README shows it, with a payload that is checked;
`plain` without a type and `async` the same as a coroutine, as those it is measured against have;
`steps` leaves five lines, a durable step each.
"""

import os
from typing import Any

from pydantic import BaseModel

from benchmarks.hits import STEPS, hit
from gnl_django import JobContext, job


class Number(BaseModel):
    """The payload: which job of the run this is."""

    i: int


def typed(payload: Number) -> None:
    """Leave the counted line, nothing else."""
    hit(payload.i)


def plain(payload: Any) -> None:
    """Leave the counted line, nothing else."""
    hit(payload["i"])


async def coroutine(payload: Any) -> None:
    """Leave the counted line, nothing else."""
    hit(payload["i"])


def steps(payload: Any, ctx: JobContext) -> None:
    """Leave five counted lines, a step each."""
    for number in range(payload["i"] * STEPS, (payload["i"] + 1) * STEPS):
        ctx.step("write", hit, number)


_handlers: dict[str, Any] = {"typed": typed, "plain": plain, "async": coroutine, "steps": steps}
noop = job("bench.noop")(_handlers[os.environ.get("BENCH_HANDLER", "typed")])
