"""The demo's child processes: the worker and the web server, in one process group of their own.

Ctrl-C in the terminal reaches the demo alone, which then ends the group gently: a worker that got
the terminal's signal and then ours would take the second for "at once".
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Self

from testproject.demo.options import BASE_DIR
from testproject.keeper import die_with_parent

HOST = "127.0.0.1"
GRACE = 15.0  # seconds for a gentle end; the worker gives its handlers 10 of them
WORKER_GRACE = 10


class Children:
    """Started children by name; leaving the context ends all that still run."""

    def __init__(self, logs: Path, environ: Mapping[str, str]) -> None:
        self.logs = logs
        self.environ = dict(environ)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._group = 0

    def start(self, name: str, *arguments: str) -> None:
        """Run `manage.py` with `arguments`; output goes to the file `name`.log."""
        with open(self.log(name), "wb") as output:
            child = subprocess.Popen(
                [sys.executable, str(BASE_DIR / "manage.py"), *arguments],
                cwd=BASE_DIR,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=self._group,
                # The demo has one thread, so this is safe: no child outlives a killed demo.
                preexec_fn=die_with_parent,
            )
        self._group = self._group or child.pid
        self._running[name] = child

    def log(self, name: str) -> Path:
        """Return the file with the output of the child `name`."""
        return self.logs / f"{name}.log"

    def tail(self, name: str, lines: int = 20) -> str:
        """Return the last lines that the child `name` wrote."""
        return "\n".join(self.log(name).read_text(errors="replace").splitlines()[-lines:])

    def pid(self, name: str) -> int:
        """Return the process id of the child `name`."""
        return self._running[name].pid

    def ended(self) -> dict[str, int]:
        """Return name and exit code of each child that has ended."""
        codes = {name: child.poll() for name, child in self._running.items()}
        return {name: code for name, code in codes.items() if code is not None}

    def stop(self, grace: float = GRACE) -> dict[str, int]:
        """SIGTERM to the group, SIGKILL to what is left after `grace` s; return the exit codes."""
        if not self._running:
            return {}
        self._signal(signal.SIGTERM)
        deadline = monotonic() + grace
        for child in self._running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, deadline - monotonic()))
        self._signal(signal.SIGKILL)
        codes = {name: child.wait() for name, child in self._running.items()}
        self._running.clear()
        return codes

    def _signal(self, number: signal.Signals) -> None:
        if any(child.poll() is None for child in self._running.values()):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._group, number)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def choose_port(wanted: int) -> int:
    """Return `wanted`, or a free port when somebody listens on it."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind((HOST, port))
                return int(probe.getsockname()[1])
    raise OSError(f"no free port on {HOST}")


def answers(port: int) -> bool:
    """Tell whether a server takes connections on `port`."""
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1):
        return True
    return False
