"""Child processes of the tests: `manage.py` commands against the test database.

The fixture `spawn` (conftest.py) hands out `Spawner` objects' calls and ends what is left at the
end of the test. A child's output goes into a file, which the waiting calls read. A child is
signalled by its own pid, and it ends with the test run also when that is killed.
"""

import contextlib
import ctypes
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
PAUSE = 0.02  # seconds between two looks


def end_with(parent: int) -> None:
    """End this process when `parent` ends (Linux); called by the children's settings."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it ended before we asked
        os._exit(1)


class Proc:
    """A running child process; `fifos` are the rendezvous of its `wait` fail points by name."""

    def __init__(
        self, popen: "subprocess.Popen[bytes]", log: Path, fifos: Mapping[str, Path]
    ) -> None:
        self.popen = popen
        self.log = log
        self.fifos = fifos
        self._waiting: dict[str, int] = {}

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.popen.pid

    @property
    def running(self) -> bool:
        """True until it has ended; a stopped process counts as running."""
        return self.popen.poll() is None

    def output(self) -> str:
        """Return what it has written so far, standard output and error together."""
        return self.log.read_text(errors="replace")

    def stop(self) -> None:
        """SIGSTOP: freeze it."""
        self._signal(signal.SIGSTOP)

    def cont(self) -> None:
        """SIGCONT: let it go on."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL: end it with no chance to clean up; works on a stopped process too."""
        self._signal(signal.SIGKILL)

    def term(self) -> None:
        """SIGTERM: ask it to end."""
        self._signal(signal.SIGTERM)

    def interrupt(self) -> None:
        """SIGINT, as Ctrl-C sends."""
        self._signal(signal.SIGINT)

    def _signal(self, number: signal.Signals) -> None:
        # popen.send_signal looks first whether it has ended, so never a stranger's pid.
        with contextlib.suppress(ProcessLookupError):
            self.popen.send_signal(number)

    def wait(self, timeout: float = 40.0) -> int:
        """Return its exit code (negative: the signal that ended it); fail after `timeout` s."""
        try:
            return self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise self._failure(f"has not ended within {timeout:g} s") from None

    def wait_line(self, text: str, timeout: float = 40.0, *, count: int = 1) -> str:
        """Return the `count`-th line of output that contains `text`; wait for it."""
        deadline = time.monotonic() + timeout
        pause = threading.Event()
        while True:
            ended = not self.running  # before the look: what it wrote last counts
            lines = [line for line in self.output().splitlines() if text in line]
            if len(lines) >= count:
                return lines[count - 1]
            if ended:
                raise self._failure(f"ended with {self.popen.returncode} without a line {text!r}")
            if time.monotonic() > deadline:
                raise self._failure(f"has not written {text!r} within {timeout:g} s")
            pause.wait(PAUSE)

    def wait_stopped(self, timeout: float = 40.0) -> None:
        """Wait until it is frozen (fail point action `stop`, or `.stop()`)."""
        deadline = time.monotonic() + timeout
        pause = threading.Event()
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.pid)
            while self.running and time.monotonic() < deadline:
                if process.status() == psutil.STATUS_STOPPED:
                    return
                pause.wait(PAUSE)
        raise self._failure(f"is not stopped after {timeout:g} s")

    def wait_point(self, name: str, timeout: float = 40.0) -> None:
        """Wait until it stands at the fail point `name`, spawned with action `wait`.

        It stays there until `release(name)`.
        """
        deadline = time.monotonic() + timeout
        pause = threading.Event()
        while True:
            try:
                # Succeeds only when the child has opened the other end.
                self._waiting[name] = os.open(self.fifos[name], os.O_WRONLY | os.O_NONBLOCK)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
            else:
                return
            if not self.running:
                raise self._failure(f"ended with {self.popen.returncode} before {name}")
            if time.monotonic() > deadline:
                raise self._failure(f"has not reached {name} within {timeout:g} s")
            pause.wait(PAUSE)

    def release(self, name: str) -> None:
        """Let it go on from the fail point at which `wait_point` found it."""
        os.close(self._waiting.pop(name))

    def close(self) -> None:
        """End it if it still runs, and let go of everything."""
        if self.running:
            self.kill()
            self.popen.wait(20)
        for descriptor in self._waiting.values():
            os.close(descriptor)
        self._waiting.clear()

    def _failure(self, text: str) -> AssertionError:
        return AssertionError(f"process {self.pid} {text}; its output:\n{self.output()[-6000:]}")


class Spawner:
    """Starts children for one test; `database_url` is the test database's."""

    def __init__(self, database_url: str, directory: Path) -> None:
        self.database_url = database_url
        self.directory = directory
        self.procs: list[Proc] = []

    def __call__(
        self,
        args: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        failpoints: str | Mapping[str, str] | None = None,
        python: Sequence[str] | None = None,
    ) -> Proc:
        """Start `manage.py *args`, or `python *python` with the same environment.

        `failpoints`: {"claim.committed": "kill@2", "handler.before": "wait"} or the text of
        GNL_FAILPOINTS. Action `wait` here needs no path: `wait_point` and `release` know it.
        """
        if threading.current_thread() is not threading.main_thread():
            # The kernel ends a child with the THREAD that started it.
            raise RuntimeError("spawn children from the main thread only")
        number = len(self.procs)
        points, fifos = self._failpoints(failpoints or {}, number)
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "DATABASE_URL": self.database_url,
            "GNL_TEST_PARENT": str(os.getpid()),
            **({"GNL_FAILPOINTS": points} if points else {}),
            **(env or {}),
        }
        log = self.directory / f"child-{number}.log"
        with log.open("wb") as output:
            popen = subprocess.Popen(
                [sys.executable, *(python or [str(ROOT / "manage.py"), *args])],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        proc = Proc(popen, log, fifos)
        self.procs.append(proc)
        return proc

    def _failpoints(
        self, wanted: str | Mapping[str, str], number: int
    ) -> tuple[str, dict[str, Path]]:
        if isinstance(wanted, str):
            return wanted, {}
        parts, fifos = [], {}
        for name, action in wanted.items():
            verb, at, nth = action.partition("@")
            if verb == "wait":
                fifos[name] = self.directory / f"fifo-{number}-{name}"
                os.mkfifo(fifos[name])
                verb = f"wait:{fifos[name]}"
            parts.append(f"{name}={verb}{at}{nth}")
        return ";".join(parts), fifos

    def close(self) -> None:
        """End every child that still runs."""
        for proc in self.procs:
            proc.close()
