"""The peers: which interpreter, which side, which worker command.

`choose` is called once at the start; a peer that cannot run here is left out loudly, not quietly.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import venv
from benchmarks.plan import POLL, BenchError

ROOT = Path(__file__).resolve().parent.parent
RAW, DJTASKS, GNL = "raw", "django-tasks-db", "gnl"
NAMES = (RAW, DJTASKS, GNL)


@dataclass(frozen=True)
class Peer:
    """One queue under measurement."""

    name: str
    python: str
    side: str
    worker: tuple[str, ...]
    settings: str = ""
    # options of the worker: as its users run it, and polling at the pace of the pick-up section
    plain: tuple[str, ...] = ()
    same_poll: tuple[str, ...] = ()
    # a few hundred jobs a second: it is given fewer jobs
    slow: bool = False
    bulk: bool = True


def raw() -> Peer:
    return Peer(
        RAW,
        sys.executable,
        "benchmarks.sides.raw",
        worker=("-m", "benchmarks.sides.raw"),
        plain=("0.02",),
        same_poll=(str(POLL),),
    )


def gnl() -> Peer:
    return Peer(
        GNL,
        sys.executable,
        "benchmarks.sides.gnl",
        worker=("manage.py", "gnl_worker", "--concurrency", "10"),
        settings="benchmarks.settings",
        same_poll=("--poll", str(POLL), "--no-backoff"),
    )


def djtasks(python: str) -> Peer:
    return Peer(
        DJTASKS,
        python,
        "benchmarks.sides.djtasks",
        worker=("-m", "django", "db_worker", "--no-startup-delay", "--verbosity", "0"),
        settings="benchmarks.sides.djtasks_settings",
        same_poll=("--interval", str(POLL)),
        slow=True,
        bulk=False,
    )


def choose(names: Sequence[str], bench_dir: Path, warn: Callable[[str], None]) -> list[Peer]:
    """Return the peers of `names` that can run on this machine."""
    peers = []
    if RAW in names:
        peers.append(raw())
    if DJTASKS in names:
        base = venv.python_313()
        if base is None:
            warn(
                f"LEFT OUT: {DJTASKS} needs Python {venv.VERSION}, and there is none"
                f" (neither python{venv.VERSION} on PATH nor ~/.pyenv/versions/{venv.VERSION}*)"
            )
        else:
            peers.append(djtasks(str(venv.make(bench_dir / "venv-djtasks", base))))
    if GNL in names:
        peers.append(gnl())
    if not peers:
        raise BenchError("no peer is left to measure")
    return peers
