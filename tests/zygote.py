"""A process that has loaded Django and makes the children of fault tests by fork: 20 ms each.

`Zygote` is the test's side, `serve` the other one (`python -m tests.zygote`). The zygote has one
thread and no connection, so a fork of it is safe. It alone waits for the children and signals them,
therefore a signal never meets a stranger that was given the pid of a child that has ended.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.procs import ROOT, Proc, end_with

SETTINGS = "tests.chaos.settings"


class Forked:
    """A child of the zygote with the part of Popen's interface that `Proc` uses."""

    def __init__(self, zygote: "Zygote", pid: int) -> None:
        self._zygote = zygote
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return its exit code if it has ended."""
        self._zygote.listen(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code; subprocess.TimeoutExpired when there is none in time."""
        deadline = time.monotonic() + (60.0 if timeout is None else timeout)
        while self.poll() is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired("zygote's child", timeout or 60.0)
            self._zygote.listen(left)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Have the zygote signal it."""
        if self.poll() is None:
            self._zygote.send(signal=[self.pid, int(number)])


class Zygote:
    """Starts children that run `module:function(*args)` of the test tree."""

    def __init__(self, directory: Path, env: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        ours, theirs = socket.socketpair()
        self._socket = ours
        self._buffer = b""
        self._answers: list[int] = []
        self._children: dict[int, Forked] = {}
        self._early: dict[int, int] = {}
        self._numbers = 0
        with theirs, (directory / "zygote.log").open("wb") as log:
            self._popen = subprocess.Popen(
                [sys.executable, "-X", "dev", "-m", "tests.zygote", str(theirs.fileno())],
                cwd=ROOT,
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "PYTHONUNBUFFERED": "1",
                    "DJANGO_SETTINGS_MODULE": SETTINGS,
                    "GNL_TEST_PARENT": str(os.getpid()),
                    **(env or {}),
                },
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def run(
        self,
        target: str,
        *args: Any,
        env: Mapping[str, str] | None = None,
        failpoints: str | Mapping[str, str] = "",
        database: Mapping[str, Any] | None = None,
    ) -> Proc:
        """Start `target` ("tests.chaos.run:worker") in a child; `args` must be JSON.

        failpoints: as Spawner's. database: changes to DATABASES["default"].
        """
        self._numbers += 1
        fifos: dict[str, Path] = {}
        parts = []
        for name, action in ({} if isinstance(failpoints, str) else failpoints).items():
            verb, at, nth = action.partition("@")
            if verb == "wait":
                fifos[name] = self.directory / f"zfifo-{self._numbers}-{name}"
                os.mkfifo(fifos[name])
                verb = f"wait:{fifos[name]}"
            parts.append(f"{name}={verb}{at}{nth}")
        points = failpoints if isinstance(failpoints, str) else ";".join(parts)
        log = self.directory / f"forked-{self._numbers}.log"
        log.touch()
        self.send(
            run=target,
            args=list(args),
            env={**(env or {}), "GNL_FAILPOINTS": points},
            database=dict(database or {}),
            log=str(log),
        )
        deadline = time.monotonic() + 60
        while not self._answers:
            assert time.monotonic() < deadline, "the zygote does not answer"
            self.listen(1.0)
        pid = self._answers.pop(0)
        child = Forked(self, pid)
        self._children[pid] = child
        if pid in self._early:
            child.returncode = self._early.pop(pid)
        return Proc(child, log, fifos)  # type: ignore[arg-type]

    def send(self, **order: Any) -> None:
        """Give one order."""
        self._socket.sendall(json.dumps(order).encode() + b"\n")

    def listen(self, seconds: float) -> None:
        """Take in what the zygote tells, waiting at most `seconds` for it."""
        if not select.select([self._socket], [], [], seconds)[0]:
            return
        read = self._socket.recv(65536)
        if not read:
            log = (self.directory / "zygote.log").read_text(errors="replace")
            raise AssertionError(f"the zygote has ended:\n{log}")
        *lines, self._buffer = (self._buffer + read).split(b"\n")
        for line in lines:
            word, pid, code = json.loads(line)
            if word == "started":
                self._answers.append(pid)
            elif pid in self._children:
                self._children.pop(pid).returncode = code
            else:
                self._early[pid] = code

    def close(self) -> None:
        """End all children and the zygote."""
        self._socket.close()
        try:
            self._popen.wait(20)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()


def serve(channel: socket.socket) -> None:
    """Take orders until the test's side is closed, then kill the children."""
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: set[int] = set()
    buffer = b""
    while True:
        ready = select.select([channel, wake_read], [], [])[0]
        if wake_read in ready:
            os.read(wake_read, 4096)
            _tell_the_ended(channel, children)
        if channel in ready:
            read = channel.recv(65536)
            if not read:
                break
            *lines, buffer = (buffer + read).split(b"\n")
            for line in lines:
                order = json.loads(line)
                if "signal" in order:
                    pid, number = order["signal"]
                    if pid in children:
                        os.kill(pid, number)
                else:
                    pid = os.fork()
                    if pid == 0:
                        _child(order, channel)
                    children.add(pid)
                    _tell(channel, "started", pid, 0)
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def _tell(channel: socket.socket, word: str, pid: int, code: int) -> None:
    channel.sendall(json.dumps([word, pid, code]).encode() + b"\n")


def _tell_the_ended(channel: socket.socket, children: set[int]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        children.discard(pid)
        _tell(channel, "ended", pid, os.waitstatus_to_exitcode(status))


def _child(order: dict[str, Any], channel: socket.socket) -> None:
    """Become what the order says; never returns."""
    code = 1
    try:
        parent = os.getppid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        channel.close()
        output = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
        end_with(parent)
        os.environ.update(order["env"])
        _arrange(order["database"])
        module, _, name = order["run"].partition(":")
        code = getattr(import_module(module), name)(*order["args"]) or 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:  # noqa: BLE001 - the log tells it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _arrange(database: dict[str, Any]) -> None:
    """Set the database and forget what the zygote knew of pids and chance."""
    import random

    from django.db import connections

    connections.settings["default"].update(database)
    with contextlib.suppress(AttributeError):
        del connections["default"]
    random.seed()


if __name__ == "__main__":
    end_with(int(os.environ["GNL_TEST_PARENT"]))
    import django

    django.setup()
    # What every child needs is loaded once; the database's driver comes with the connections.
    from django.db import connections as _connections

    from gnl_django.core.registry import autodiscover

    import_module("tests.chaos.run")
    import_module("django.core.management.commands.shell")
    autodiscover()
    _connections["default"].close()
    serve(socket.socket(fileno=int(sys.argv[1])))
