"""One peer at one database: its producer process, its worker processes, its logs.

A stand owns every process it starts and ends them all in `close`; each is tethered to this one
(benchmarks.tether), so none outlives a killed run.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import psutil  # type: ignore[import-untyped,unused-ignore]

from benchmarks import hits, machine
from benchmarks.peers import ROOT, Peer
from benchmarks.plan import BenchError

REPLY_TIMEOUT = 600.0  # seconds; the longest command (a million rows) takes about a minute
STOP_TIMEOUT = 10.0


@dataclass(frozen=True)
class Place:
    """A database as a child process is told of it: for Django, for libpq (PostgreSQL), Redis."""

    name: str
    url: str = ""
    dsn: str = ""
    redis: str = ""

    def through(self, port: int, other: int) -> "Place":
        """Return the place as it is reached through `other`, a proxy before the server's `port`."""
        return replace(
            self,
            url=self.url.replace(f":{port}/", f":{other}/"),
            dsn=self.dsn.replace(f"port={port} ", f"port={other} "),
        )


class Stand:
    """A peer ready to be measured."""

    def __init__(self, peer: Peer, place: Place, hit_path: Path, logs: Path) -> None:
        self.peer = peer
        self.place = place
        self._hit_path = hit_path
        self._log = (logs / f"{place.name}.log").open("ab")
        self._producer: subprocess.Popen[str] | None = None

    def call(self, do: str, **arguments: object) -> Any:
        """Let the producer carry out one command of `benchmarks.producer.Commands`."""
        producer = self._producer or self._start_producer()
        stdin, stdout = _pipes(producer)
        timer = threading.Timer(REPLY_TIMEOUT, producer.kill)
        timer.start()
        try:
            stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            stdin.flush()
            line = stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if not line:
            raise BenchError(f"{self.place.name}: the producer ended during {do}; see {self.log}")
        reply = json.loads(line)
        if "error" in reply:
            raise BenchError(f"{self.place.name}: {do} failed\n{reply['error']}")
        return reply["value"]

    def own(self, name: str, **arguments: object) -> Any:
        """Let the producer call what only its side has."""
        return self.call("own", name=name, **arguments)

    def run(self, *command: str) -> float:
        """Run the peer's interpreter with `command` to its end; return the seconds it took."""
        start = time.monotonic()
        code = self._spawn([self.peer.python, *command], self._environment(self.place)).wait()
        if code:
            raise BenchError(f"{self.place.name}: {command} ended with {code}; see {self.log}")
        return time.monotonic() - start

    @property
    def log(self) -> str:
        """Return the path of what the stand's processes print."""
        return str(self._log.name)

    @contextmanager
    def workers(self, count: int, *options: str, place: Place | None = None) -> Iterator[list[int]]:
        """Run `count` worker processes and yield their process ids; `place`: another way in."""
        command = [self.peer.python, *self.peer.worker, *options]
        environment = self._environment(place or self.place)
        started = [self._spawn(command, environment) for _ in range(count)]
        try:
            yield [process.pid for process in started]
            for process in started:
                if process.poll() is not None:
                    raise BenchError(
                        f"{self.place.name}: a worker ended with {process.returncode};"
                        f" see {self.log}"
                    )
        finally:
            stop(started)

    def close(self) -> None:
        """End the producer."""
        if self._producer:
            _pipes(self._producer)[0].close()
            try:
                self._producer.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._producer.kill()
                self._producer.wait()
            self._producer = None
        self._log.close()

    def _start_producer(self) -> subprocess.Popen[str]:
        command = [self.peer.python, "-m", "benchmarks.producer", self.peer.side]
        self._producer = subprocess.Popen(
            _tethered(command),
            cwd=ROOT,
            env=self._environment(self.place),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        return self._producer

    def _spawn(self, command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            _tethered(command),
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )

    def _environment(self, place: Place) -> dict[str, str]:
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "DATABASE_URL": place.url,
            "BENCH_DSN": place.dsn,
            "BENCH_REDIS": place.redis,
            hits.VARIABLE: str(self._hit_path),
            **self.peer.environment,
        }
        if self.peer.settings:
            environment["DJANGO_SETTINGS_MODULE"] = self.peer.settings
        return environment


def _tethered(command: list[str]) -> list[str]:
    return [sys.executable, "-m", "benchmarks.tether", *command]


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    if process.stdin is None or process.stdout is None:
        raise BenchError("the producer has no pipes")
    return process.stdin, process.stdout


def stop(processes: list[subprocess.Popen[bytes]]) -> None:
    """Ask the workers to end, wait, and kill what is left of them and of their children."""
    trees: list[psutil.Process] = []
    for process in processes:
        trees += machine.tree(process.pid)
        process.terminate()
    for process in processes:
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for left in trees:
        if left.is_running():
            left.kill()
