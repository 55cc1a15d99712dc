"""What the private servers share: directory, user, port, keeper, start and stop.

Base of the two classes in `testproject.servers`. A server has its own directory and its own free
port on 127.0.0.1, so any number run side by side; it runs under an ordinary user also when the
caller is root, and it ends with the program that started it (`testproject.keeper`).
"""

import atexit
import contextlib
import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

HOST = "127.0.0.1"
# Below the range from which the kernel takes the ports of outgoing connections (32768 and up):
# otherwise a client's connection could occupy the server's port while it restarts.
PORTS = range(20_000, 32_000)
START_TIMEOUT = 60.0
STOP_TIMEOUT = 60.0


class ServerError(Exception):
    """A private server could not be found, started or stopped; the text holds its log's end."""


class PrivateServer(ABC):
    """A database server that belongs to this program.

    `directory`: where the data lies; without it a temporary directory that stop removes. A given
    directory stays and may hold the data of an earlier run. `durable=False` gives up every
    guarantee against power loss for speed; True leaves the database's own defaults.
    """

    label: ClassVar[str]
    user_names: ClassVar[Sequence[str]]  # the first that exists, when the caller is root
    signals: ClassVar[Mapping[str, signal.Signals]]

    def __init__(self, directory: str | Path | None = None, *, durable: bool = False) -> None:
        self.durable = durable
        self.port = 0
        self._given = Path(directory).resolve() if directory is not None else None
        self._directory: Path | None = None
        self._identity = ordinary_user(self.user_names) if os.geteuid() == 0 else None
        self._keeper: subprocess.Popen[bytes] | None = None
        self._server_pid = 0
        self._log_start = 0
        self._owner = os.getpid()

    # -- what the caller uses ---------------------------------------------------------------

    def start(self) -> Self:
        """Create the data directory if needed and return when the server takes connections."""
        if self.running:
            return self
        self._discard()  # of a server that ended by itself
        self._owner = os.getpid()
        try:
            self._prepare()
            self._bring_up(time.monotonic() + START_TIMEOUT)
        except BaseException:
            self._discard()
            self._remove_own_directory()
            raise
        atexit.register(self._at_exit)
        return self

    def stop(self, mode: str = "fast", *, timeout: float = STOP_TIMEOUT) -> None:
        """Stop in one of the modes of `signals`; remove the directory if it is our own.

        Raises ServerError when the server is still there after `timeout` seconds.
        """
        self.halt(mode, timeout=timeout)
        atexit.unregister(self._at_exit)
        self._remove_own_directory()

    def halt(self, mode: str = "fast", *, timeout: float = STOP_TIMEOUT) -> None:
        """Stop, but keep the data; `start` then takes up the same data and the same port."""
        number = self.signals[mode]
        keeper = self._keeper
        if keeper is None:
            return
        if keeper.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._server_pid, number)
            try:
                keeper.wait(timeout)
            except subprocess.TimeoutExpired:
                raise ServerError(
                    f"{self.label} still runs {timeout:g} s after its {mode} stop:\n"
                    + self.log_tail()
                ) from None
        self._discard()

    def restart(self, mode: str = "fast") -> None:
        """Stop in `mode` and start again: same data, same port."""
        self.halt(mode)
        self.start()

    @property
    def running(self) -> bool:
        """True while the server's process lives."""
        return self._keeper is not None and self._keeper.poll() is None

    @property
    def pid(self) -> int:
        """The process id of the server's main process."""
        return self._server_pid

    @property
    def directory(self) -> Path:
        """The directory that holds data and log; only while there is one."""
        if self._directory is None:
            raise ServerError(f"{self.label} has not been started")
        return self._directory

    def log_tail(self, size: int = 4000) -> str:
        """Return the end of the server's log."""
        with contextlib.suppress(OSError):
            return (self.directory / "log").read_text(errors="replace")[-size:]
        return "(no log)"

    @abstractmethod
    def url(self, database: str) -> str:
        """Return a DATABASE_URL for `database`."""

    @abstractmethod
    def create(self, database: str) -> None:
        """Create the empty database `database`."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop("fast" if self._given else "immediate")

    # -- what each server says about itself --------------------------------------------------

    @abstractmethod
    def _initialise(self) -> None:
        """Make the data directory `self.data` unless it has been made."""

    @abstractmethod
    def _command(self) -> list[str]:
        """Return the command line of the server."""

    @abstractmethod
    def _ready(self) -> bool:
        """Tell whether the server that was just launched takes connections."""

    @property
    def data(self) -> Path:
        """The database's own directory."""
        return self.directory / "data"

    # -- the inside --------------------------------------------------------------------------

    def _prepare(self) -> None:
        if self._directory is None:
            if self._given is not None:
                self._given.mkdir(parents=True, exist_ok=True)
                self._directory = self._given
            else:
                self._directory = Path(
                    tempfile.mkdtemp(prefix=f"gnl-{self.label.lower()}-", dir=self._temporary())
                )
        if self._identity is not None:
            if not passable(self._directory, self._identity[0]):
                raise ServerError(f"{self._directory} is closed to the server's ordinary user")
            os.chown(self._directory, *self._identity)
        self._initialise()

    def _temporary(self) -> str | None:
        """Return where to make the temporary directory: a place the ordinary user can reach."""
        if self._identity is None:
            return None
        uid = self._identity[0]
        places = [tempfile.gettempdir(), "/tmp", "/var/tmp"]  # noqa: S108 - mkdtemp makes it ours
        return next((place for place in places if passable(Path(place, "new"), uid)), None)

    def _run(self, command: Sequence[str]) -> None:
        """Run a tool of the server under its ordinary user, in its directory."""
        uid, gid = self._identity or (None, None)
        done = subprocess.run(
            command,
            user=uid,
            group=gid,
            extra_groups=None if uid is None else [],
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        if done.returncode:
            text = done.stdout.decode(errors="replace")[-4000:]
            raise ServerError(f"{command[0]} ended with {done.returncode}:\n{text}")

    def _launch(self) -> None:
        uid, gid = self._identity or (None, None)
        log = self.directory / "log"
        self._log_start = log.stat().st_size if log.exists() else 0
        order = {
            "command": self._command(),
            "log": str(log),
            "user": uid,
            "group": gid,
            "signal": int(self.signals["fast" if self._given else "immediate"]),
            "remove": None if self._given else str(self.directory),
        }
        # A session of its own: Ctrl-C in the terminal is for the program, which then stops us.
        self._keeper = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-S",
                str(Path(__file__).with_name("keeper.py")),
                json.dumps(order),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._keeper.stdout is not None  # noqa: S101 - for the type checker
        line = self._keeper.stdout.readline()
        if not line.strip().isdigit():
            _, errors = self._keeper.communicate()
            raise ServerError(f"{self.label} could not be run:\n{errors.decode(errors='replace')}")
        self._server_pid = int(line)

    def _bring_up(self, deadline: float) -> None:
        while True:
            # The same port again after a stop, so that clients can reconnect.
            self.port = self.port or free_port()
            self._launch()
            if self._await_ready(deadline):
                return
            self._discard()
            if time.monotonic() > deadline or not self._may_retry(self._new_log()):
                raise ServerError(f"{self.label} did not start:\n{self.log_tail()}")
            threading.Event().wait(0.1)

    def _await_ready(self, deadline: float) -> bool:
        pause = threading.Event()
        while self.running and time.monotonic() < deadline:
            if self._ready():
                return True
            pause.wait(0.02)
        return False

    def _may_retry(self, log: str) -> bool:
        """Take another port when ours was taken; wait while a killed server's children end."""
        if "ddress already in use" in log:
            self.port = 0
            return True
        return any(
            word in log for word in ("pre-existing shared memory", "Unable to lock", "lock file")
        )

    def _new_log(self) -> str:
        """Return what the server has written since it was launched."""
        with contextlib.suppress(OSError), (self.directory / "log").open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")
        return ""

    def _discard(self) -> None:
        """Let go of a server that has ended or will not start."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            if keeper.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._server_pid, signal.SIGKILL)
                keeper.wait(STOP_TIMEOUT)
            for pipe in (keeper.stdin, keeper.stdout, keeper.stderr):
                if pipe is not None:
                    pipe.close()

    def _remove_own_directory(self) -> None:
        if self._given is None and self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory, self.port = None, 0

    def _at_exit(self) -> None:
        # A forked child inherits the registration, not the server.
        if os.getpid() == self._owner:
            with contextlib.suppress(ServerError):
                self.stop("fast" if self._given else "immediate", timeout=20)


def ordinary_user(names: Sequence[str]) -> tuple[int, int]:
    """Return user and group number of the first of `names` that exists."""
    for name in names:
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return entry.pw_uid, entry.pw_gid
    raise ServerError(f"root may not run a database server, and no user of {names} exists")


def passable(path: Path, uid: int) -> bool:
    """Tell whether the user `uid` may pass every directory above `path` (groups apart)."""
    for parent in path.parents:
        facts = parent.stat()
        if not facts.st_mode & (stat.S_IXUSR if facts.st_uid == uid else stat.S_IXOTH):
            return False
    return True


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on at this moment."""
    for _ in range(200):
        port = PORTS.start + secrets.randbelow(len(PORTS))
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind((HOST, port))
                return port
    raise ServerError(f"no free port between {PORTS.start} and {PORTS.stop}")
