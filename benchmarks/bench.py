"""The run itself: one durable PostgreSQL, a stand for each peer, and the order of turns.

`python -m benchmarks` opens it, the sections use it; closing it ends every process it started and
removes the server's data.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import psutil  # type: ignore[import-untyped,unused-ignore]
import psycopg

from benchmarks.drain import Drain, Ground, drain
from benchmarks.hits import HitLog
from benchmarks.peers import JOURNALS, Peer
from benchmarks.plan import Sizes
from benchmarks.redis import PrivateRedis
from benchmarks.results import Results
from benchmarks.stand import Place, Stand
from testproject.private_server import PrivateServer, ServerError
from testproject.servers import PrivatePostgres

# durability is the database's default; it is named here because a benchmark must not rest on it
SERVER_SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "autovacuum": "on",
    "shared_buffers": "512MB",
}

_Server = TypeVar("_Server", bound=PrivateServer)


def _postgres(directory: Path | None) -> PrivatePostgres:
    return PrivatePostgres(directory, durable=True, settings=SERVER_SETTINGS)


class Bench:
    """Server, peers and results of one run."""

    def __init__(
        self, peers: list[Peer], sizes: Sizes, directory: Path, say: Callable[[str], None]
    ) -> None:
        #: Those that take part in the section `steps` alone, and all others.
        self.journals = [peer for peer in peers if peer.name in JOURNALS]
        self.peers = [peer for peer in peers if peer.name not in JOURNALS]
        self.sizes = sizes
        self.directory = directory
        self.say = say
        self.results = Results()
        self.logs = directory / "logs"
        self._stands: dict[str, Stand] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self.logs.mkdir(parents=True, exist_ok=True)
        for old in self.logs.glob("*.log"):
            old.unlink()
        for left in self.directory.glob("run-*"):
            if not psutil.pid_exists(int(left.name.removeprefix("run-"))):
                shutil.rmtree(left, ignore_errors=True)  # of a run that was killed
        self.scratch = self.directory / f"run-{os.getpid()}"
        self.scratch.mkdir()
        self._stack.callback(shutil.rmtree, self.scratch, ignore_errors=True)
        self.hits = HitLog(self.scratch / "hits.log")
        self.server = self._start("postgres", _postgres)
        self.ground = Ground(self.hits, self.server.pid, self.settle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for stand in self._stands.values():
            stand.close()
        self._stack.close()

    # -- stands and turns --------------------------------------------------------------------

    def stand(self, peer: Peer, variant: str = "") -> Stand:
        """Return the peer's stand at its own database, made at the first call."""
        name = "-".join(filter(None, ("bench", peer.name, variant)))
        if name not in self._stands:
            self.add_stand(Stand(peer, self._place(name, peer), self.hits.path, self.logs))
        return self._stands[name]

    def _place(self, name: str, peer: Peer) -> Place:
        if peer.broker:
            return Place(name, redis=self.redis.url())
        self.server.create(name)
        return Place(name, self.server.url(name), self.server.dsn(name))

    def add_stand(self, stand: Stand) -> Stand:
        """Make the stand's tables and close it with the run."""
        self._stands[stand.place.name] = stand
        stand.call("prepare")
        return stand

    def peer(self, name: str) -> Peer | None:
        """Return the peer of that name when it takes part."""
        return next((peer for peer in self.peers if peer.name == name), None)

    def turns(self, repeats: int, peers: list[Peer] | None = None) -> Iterator[Peer]:
        """Yield the peers in turn, so that noise of the machine falls on all alike.

        Each round begins with another peer: none always follows the same one.
        """
        peers = self.peers if peers is None else peers
        for turn in range(repeats):
            first = turn % max(1, len(peers))
            yield from peers[first:] + peers[:first]

    def drain(self, stand: Stand, jobs: int, **options: object) -> Drain:
        """Drain (benchmarks.drain) and keep the result with the run."""
        ground = Ground(self.hits, self.redis.pid, _leave) if stand.peer.broker else self.ground
        result = drain(stand, ground, jobs, **options)  # type: ignore[arg-type]
        return self.keep(result)

    def keep(self, result: Drain) -> Drain:
        """Keep a drain with the run, and say so at once when it was not right."""
        self.results.drains.append(result)
        if not result.correct:
            self.say(f"WRONG: {result}")
        return result

    # -- the server --------------------------------------------------------------------------

    def fresh(self, peer: Peer, variant: str = "") -> Stand:
        """Return the peer's stand with an empty queue in a settled database."""
        stand = self.stand(peer, variant)
        stand.call("reset")
        if not peer.broker:
            self.settle(stand.place.name)
        return stand

    def settle(self, database: str) -> None:
        """Bring a database to the same state before each measurement.

        Statistics fresh, dead rows gone, and a checkpoint just done: the first change of a page
        after a checkpoint is written in full, and without this the luck of the clock decides.
        """
        with psycopg.connect(self.server.dsn(database), autocommit=True) as connection:
            connection.execute("VACUUM (ANALYZE)")
            connection.execute("CHECKPOINT")

    @cached_property
    def redis(self) -> PrivateRedis:
        """The broker of the peer that needs one, started at its first use."""
        return self._start("redis", PrivateRedis)

    def server_facts(self) -> dict[str, object]:
        """Return version and settings as the server says them, and where its data lies."""
        shown = ("server_version", *SERVER_SETTINGS)
        with psycopg.connect(self.server.dsn("postgres")) as connection:
            rows = [connection.execute(f"SHOW {name}").fetchone() for name in shown]
        facts: dict[str, object] = {
            name: row[0] if row else None for name, row in zip(shown, rows, strict=True)
        }
        facts["filesystem"] = _filesystem(self.server.directory)
        return facts

    def _start(self, name: str, make: Callable[[Path | None], _Server]) -> _Server:
        """Start on the disk of the checkout: `/tmp` may be memory, where a sync costs nothing.

        Where the server's ordinary user cannot get there, a temporary directory has to do; the
        JSON names the file system in either case.
        """
        server = make(self.scratch / name)
        try:
            self._stack.enter_context(server)
        except ServerError:
            server = make(None)
            self._stack.enter_context(server)
        return server


def _leave(_: str) -> None:
    """Settle nothing: Redis has no statistics."""


def _filesystem(path: Path) -> str:
    """Return the type of the file system that holds `path`."""
    mounts = [
        part for part in psutil.disk_partitions(all=True) if path.is_relative_to(part.mountpoint)
    ]
    return max(mounts, key=lambda part: len(part.mountpoint)).fstype if mounts else "unknown"
