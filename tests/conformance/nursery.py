"""Worker processes by fork, for tests that need many of them: 0.05 s a start instead of 0.4 s.

`python -m tests.conformance.nursery FIFO` has Django and the command loaded and forks a
`gnl_worker` for each request, one after another; `Nursery` starts it, sends requests through the
FIFO and waits for their answers. The nursery itself has no thread and no database connection.
"""

import contextlib
import faulthandler
import json
import os
import select
import signal
import sys
from pathlib import Path
from time import monotonic
from typing import Any

from tests.procs import Proc, Spawner, end_with

PATIENCE = 40.0  # seconds for one worker's life
ANSWER = "nursery answers "


class Nursery:
    """The test's end: `worker(["--queues", "a"], failpoints="claim.begin=kill")`."""

    def __init__(self, spawn: Spawner, directory: Path) -> None:
        fifo = directory / "nursery"
        os.mkfifo(fifo)
        self._proc: Proc = spawn(
            [],
            python=["-m", "tests.conformance.nursery", str(fifo)],
            env={"GNL_FAILPOINTS": ""},  # allowed here, armed in the workers
        )
        self._requests = fifo.open("w", buffering=1)
        self._count = 0

    def worker(self, options: list[str], **request: Any) -> tuple[int, str]:
        """Run a worker to its end; return its exit code (negative: the signal) and its output.

        failpoints: text of GNL_FAILPOINTS. term_at: send SIGTERM when the output holds this text,
        `delay` seconds later.
        """
        print(json.dumps({"options": options, **request}), file=self._requests)
        self._count += 1
        line = self._proc.wait_line(ANSWER, PATIENCE + 10, count=self._count)
        code, output = json.loads(line.partition(ANSWER)[2])
        return code, output

    def close(self) -> None:
        """Let the nursery end."""
        self._requests.close()
        assert self._proc.wait() == 0, self._proc.output()


def main(fifo: str) -> None:
    """Serve requests until the FIFO is closed."""
    import django

    django.setup()
    from django.core.management import load_command_class

    load_command_class("gnl_django", "gnl_worker")
    with Path(fifo).open() as requests:
        for line in requests:
            print(ANSWER + json.dumps(live(json.loads(line))), flush=True)


def live(request: dict[str, Any]) -> tuple[int, str]:
    """Fork a worker, watch it, and return its exit code and output."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        become_worker(write, request)
    os.close(write)
    try:
        output = watch(pid, read, request)
    finally:
        os.close(read)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), output


def become_worker(write: int, request: dict[str, Any]) -> None:
    """Be `manage.py gnl_worker` with its output in the pipe; never returns."""
    end_with(os.getppid())
    os.dup2(write, 1)
    os.dup2(write, 2)
    faulthandler.enable()
    os.environ["GNL_FAILPOINTS"] = request.get("failpoints", "")
    from django.core.management import execute_from_command_line

    code: Any = 1
    try:
        execute_from_command_line(["manage.py", "gnl_worker", *request["options"]])
        code = 0
    except SystemExit as ended:
        code = ended.code
    finally:
        sys.stdout.flush()
        os._exit(int(code or 0))


def watch(pid: int, read: int, request: dict[str, Any]) -> str:
    """Read a worker's output to its end; send SIGTERM when the request says so."""
    found = b""
    term_at = request.get("term_at", "").encode() or None
    deadline = monotonic() + PATIENCE
    while True:
        ready, _, _ = select.select([read], [], [], max(0.0, deadline - monotonic()))
        if not ready:
            found += b"\nIt does not end. Its threads:\n"
            deadline = monotonic() + PATIENCE
            os.kill(pid, signal.SIGABRT)  # faulthandler writes them into the pipe
            continue
        part = os.read(read, 65_536)
        if not part:
            return found.decode(errors="replace")
        found += part
        if term_at is not None and term_at in found:
            term_at = None
            moment = monotonic() + request.get("delay", 0.0)
            while monotonic() < moment:  # shorter than any wait could be exact
                os.sched_yield()
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)


if __name__ == "__main__":
    main(sys.argv[1])
