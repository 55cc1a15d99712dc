"""The measured handler: found by the worker as in any app, and called by the producer's side."""

from pydantic import BaseModel

from benchmarks.hits import hit
from gnl_django import job


class Number(BaseModel):
    """The payload: which job of the run this is."""

    i: int


@job("bench.noop")
def noop(payload: Number) -> None:
    """Leave the counted line, nothing else."""
    hit(payload.i)
