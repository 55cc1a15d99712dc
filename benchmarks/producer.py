"""The child process that enqueues for one peer: reads commands, answers with what it measured.

`python -m benchmarks.producer benchmarks.sides.raw`: one JSON object a line in, one out; it ends
with its input. Clocks are read here, in the peer's own process, so that no pipe is in a figure.
"""

import importlib
import json
import sys
import threading
import time
import traceback
from typing import Any

from benchmarks.sides.base import Side


class Commands:
    """What the benchmark may ask for; each method is one command."""

    def __init__(self, side: Side) -> None:
        self._side = side

    def prepare(self) -> None:
        self._side.prepare()

    def reset(self) -> None:
        self._side.reset()

    def load(self, count: int, orgs: int = 0) -> int:
        """Return the stamp of the moment at which the jobs are there."""
        self._side.load(range(count), orgs)
        return time.monotonic_ns()

    def seed(self, finished: int, scheduled: int) -> None:
        self._side.seed(finished, scheduled)

    def unfinished(self) -> int:
        return self._side.unfinished()

    def single(self, count: int) -> float:
        """Return the seconds that `count` single enqueues took, after a first one unmeasured."""
        self._side.enqueue(count)
        start = time.perf_counter()
        for number in range(count):
            self._side.enqueue(number)
        return time.perf_counter() - start

    def bulk(self, count: int) -> float:
        """Return the seconds of one bulk call of `count` jobs."""
        numbers = list(range(count))
        start = time.perf_counter()
        self._side.enqueue_many(numbers)
        return time.perf_counter() - start

    def keyed(self, count: int, orgs: int) -> float:
        """Return the seconds of one bulk call of `count` jobs with keys, over `orgs` lanes."""
        numbers = list(range(count))
        start = time.perf_counter()
        self._side.enqueue_keyed(numbers, orgs)
        return time.perf_counter() - start

    def spaced(
        self, count: int, gap: float, first: int = 0, org: str = ""
    ) -> list[tuple[int, int]]:
        """Enqueue `count` jobs on a fixed beat; return the stamps around each call."""
        stamps = []
        never = threading.Event()
        start = time.monotonic()
        for at in range(count):
            never.wait(max(0.0, start + at * gap - time.monotonic()))
            before = time.monotonic_ns()
            if org:
                self._side.enqueue_for(org, first + at)
            else:
                self._side.enqueue(first + at)
            stamps.append((before, time.monotonic_ns()))
        return stamps

    def own(self, name: str, **arguments: Any) -> Any:
        """Call what only this side has."""
        return getattr(self._side, name)(**arguments)


def answer(commands: Commands, line: str) -> dict[str, Any]:
    """Run one command and return its answer; an error is an answer too."""
    request: dict[str, Any] = json.loads(line)
    name = request.pop("do")
    try:
        return {"value": getattr(commands, name)(**request)}
    except Exception:  # noqa: BLE001 - the benchmark decides what to do with it
        return {"error": traceback.format_exc()}


def main(module: str) -> None:
    """Answer every line of standard input."""
    replies, sys.stdout = sys.stdout, sys.stderr  # what a library prints must not mix with replies
    commands = Commands(importlib.import_module(module).SIDE())
    for line in sys.stdin:
        print(json.dumps(answer(commands, line)), file=replies, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
