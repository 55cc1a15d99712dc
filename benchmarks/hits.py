"""The counted side effect: one line "<monotonic ns> <number>" for each run of a job.

Every handler of every peer calls `hit`; the benchmark counts the lines, checks that each number is
there exactly once, and takes rates and pick-up times from the stamps (the monotonic clock is one
for the whole machine). Standard library only: peers import it in their own environments.
"""

import functools
import os
import time
from pathlib import Path
from typing import NamedTuple

VARIABLE = "BENCH_HITS"
STEPS = 5  # lines of a job in the section `steps`: numbers STEPS * n up to STEPS * n + STEPS - 1


@functools.cache
def _descriptor() -> int:
    return os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def hit(number: int) -> None:
    """Write the line of job `number`: a single append, so lines of several processes never mix."""
    os.write(_descriptor(), b"%d %d\n" % (time.monotonic_ns(), number))


class Hit(NamedTuple):
    """One run of one job."""

    at_ns: int
    number: int


class HitLog:
    """The file as the benchmark reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._lines = 0
        self.clear()

    def clear(self) -> None:
        """Forget all lines; writers that have the file open go on at its start."""
        with self.path.open("wb"):
            self._offset = self._lines = 0

    def count(self) -> int:
        """Return the number of lines, reading only what is new since the last call."""
        with self.path.open("rb") as file:
            file.seek(self._offset)
            new = file.read()
        self._offset += len(new)
        self._lines += new.count(b"\n")
        return self._lines

    def read(self) -> list[Hit]:
        """Return every hit in the order of its stamp."""
        lines = self.path.read_bytes().splitlines()
        return sorted(Hit(*map(int, line.split())) for line in lines)
