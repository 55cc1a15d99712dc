"""The peers: which interpreter, which side, which worker command, how it hears of a job.

`choose` is called once at the start; a peer that cannot run here is left out loudly, not quietly.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import redis, venv
from benchmarks.plan import POLL, BenchError

ROOT = Path(__file__).resolve().parent.parent
RAW, DJTASKS, PGQUEUER, GNL = "raw", "django-tasks-db", "pgqueuer", "gnl"
PROCRASTINATE, CELERY, OX, DJQUEUE = "procrastinate", "celery", "django-ox", "dj-queue"
DBOS, ABSURD = "dbos", "absurd"
NAMES = (RAW, PGQUEUER, PROCRASTINATE, CELERY, DJTASKS, OX, DJQUEUE, DBOS, ABSURD, GNL)
DEFAULT = (RAW, PGQUEUER, DJTASKS, DBOS, ABSURD, GNL)
#: Those that keep their jobs in PostgreSQL and are somebody else's.
ON_POSTGRES = (PGQUEUER, PROCRASTINATE, DJTASKS, OX, DJQUEUE)
#: Those that take part in the section `steps`, and in no other: they journal the steps of a job.
JOURNALS = (DBOS, ABSURD)
SLOTS = "10"  # jobs at a time for every worker that can have several
SIDES = "benchmarks.sides"


@dataclass(frozen=True)
class Peer:
    """One queue under measurement."""

    name: str
    python: str
    side: str
    worker: tuple[str, ...]
    settings: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    # the worker's options as its users run it, and for the latency section
    plain: tuple[str, ...] = ()
    prompt: tuple[str, ...] = ()
    # told of a new job; the others find it at their next poll
    notified: bool = False
    # a few hundred jobs a second: it is given fewer jobs
    slow: bool = False
    bulk: bool = True
    # its jobs lie in Redis
    broker: bool = False
    # whose versions the report names
    packages: tuple[str, ...] = ()


@dataclass(frozen=True)
class Kit:
    """What an environment of a peer is made of; without `newer` it has our own Python."""

    packages: tuple[str, ...]
    newer: bool = False


# the release that was tried: another one may have other calls
KITS: Mapping[str, Kit] = {
    PGQUEUER: Kit(("pgqueuer[asyncpg,uvloop]==1.6.*",)),
    PROCRASTINATE: Kit(("procrastinate==3.10.*", "psycopg[binary,pool]>=3.2", "django==5.2.*")),
    CELERY: Kit(("celery[redis]==5.7.*", "django==5.2.*")),
    DJTASKS: Kit(("django-tasks-db==0.13.*", "django==6.1.*", "psycopg[binary]>=3.2"), newer=True),
    OX: Kit(("django-ox==1.9.*", "django==6.1.*", "psycopg[binary]>=3.2"), newer=True),
    DJQUEUE: Kit(("dj-queue==0.14.*", "django==6.1.*", "psycopg[binary]>=3.3.3"), newer=True),
    DBOS: Kit(("dbos==3.4.*",)),
    ABSURD: Kit(("absurd-sdk==0.5.*", "absurdctl==0.5.*", "psycopg[binary]>=3.2")),
}


def raw(python: str, *, side: str = "raw") -> Peer:
    """Return the floor; `side`: `raw_steps` journals the steps of a job."""
    return Peer(
        RAW,
        python,
        f"{SIDES}.{side}",
        worker=("-m", f"{SIDES}.{side}"),
        plain=("0.02",),
        prompt=(str(POLL),),
        packages=("psycopg",),
    )


def gnl(python: str, *, slots: str = SLOTS, handler: str = "typed") -> Peer:
    """Return ourselves; `handler` is one of those of `benchmarks.app.background`."""
    return Peer(
        GNL,
        python,
        f"{SIDES}.gnl",
        worker=("manage.py", "gnl_worker", "-v", "0", "--concurrency", slots),
        settings="benchmarks.settings",
        environment={"BENCH_HANDLER": handler},
        notified=True,
        packages=("gnl-django", "django", "psycopg"),
    )


def pgqueuer(python: str, *, batch: str = SLOTS) -> Peer:
    """Return pgqueuer on asyncpg and uvloop; its handlers are always coroutines."""
    return Peer(
        PGQUEUER,
        python,
        f"{SIDES}.pgq",
        worker=("-m", f"{SIDES}.pgq", batch),
        notified=True,
        packages=("pgqueuer", "asyncpg", "uvloop"),
    )


def procrastinate(python: str) -> Peer:
    """Return procrastinate through its Django app, with coroutines as handlers."""
    return Peer(
        PROCRASTINATE,
        python,
        f"{SIDES}.procrastinate_app",
        worker=("-m", "django", "procrastinate", "worker", "--concurrency", SLOTS),
        settings=f"{SIDES}.procrastinate_settings",
        notified=True,
        slow=True,
        packages=("procrastinate", "django", "psycopg"),
    )


def celery(python: str) -> Peer:
    """Return Celery on Redis with its defaults: a process for each core, early acknowledgement."""
    return Peer(
        CELERY,
        python,
        f"{SIDES}.celery_app",
        worker=("-m", f"{SIDES}.celery_app"),
        settings=f"{SIDES}.celery_settings",
        notified=True,
        broker=True,
        packages=("celery", "kombu", "redis", "django"),
    )


def djtasks(python: str) -> Peer:
    """Return the database backend of Django's own tasks: one task at a time, no bulk call."""
    return Peer(
        DJTASKS,
        python,
        f"{SIDES}.djtasks",
        worker=("-m", "django", "db_worker", "--no-startup-delay", "--verbosity", "0"),
        settings=f"{SIDES}.tasks_settings",
        environment={"BENCH_BACKEND": DJTASKS},
        prompt=("--interval", str(POLL)),
        slow=True,
        bulk=False,
        packages=("django-tasks-db", "django", "psycopg"),
    )


def ox(python: str) -> Peer:
    """Return django-ox."""
    return Peer(
        OX,
        python,
        f"{SIDES}.ox",
        worker=("-m", "django", "ox_worker", "--verbosity", "0", "--concurrency", SLOTS),
        settings=f"{SIDES}.tasks_settings",
        environment={"BENCH_BACKEND": OX},
        prompt=("--interval", str(POLL)),
        slow=True,
        packages=("django-ox", "django", "psycopg"),
    )


def djqueue(python: str) -> Peer:
    """Return dj-queue in its mode of one process; the settings say how many threads."""
    return Peer(
        DJQUEUE,
        python,
        f"{SIDES}.djqueue",
        worker=("-m", "django", "dj_queue", "--verbosity", "0"),
        settings=f"{SIDES}.tasks_settings",
        environment={"BENCH_BACKEND": DJQUEUE, "BENCH_SLOTS": SLOTS},
        notified=True,
        slow=True,
        packages=("dj-queue", "django", "psycopg"),
    )


def dbos(python: str) -> Peer:
    """Return DBOS: ten threads, and a queue that is asked for all it has at each poll."""
    return Peer(
        DBOS,
        python,
        f"{SIDES}.dbos_app",
        worker=("-m", f"{SIDES}.dbos_app"),
        plain=("0.02",),
        packages=("dbos", "sqlalchemy", "psycopg"),
    )


def absurd(python: str) -> Peer:
    """Return absurd-sdk with ten clients in one process, and the schema of absurdctl."""
    return Peer(
        ABSURD,
        python,
        f"{SIDES}.absurd_app",
        worker=("-m", f"{SIDES}.absurd_app"),
        packages=("absurd-sdk", "absurdctl", "psycopg"),
    )


MAKERS: Mapping[str, Callable[[str], Peer]] = {
    RAW: raw,
    PGQUEUER: pgqueuer,
    PROCRASTINATE: procrastinate,
    CELERY: celery,
    DJTASKS: djtasks,
    OX: ox,
    DJQUEUE: djqueue,
    DBOS: dbos,
    ABSURD: absurd,
    GNL: gnl,
}


def choose(names: Sequence[str], bench_dir: Path, warn: Callable[[str], None]) -> list[Peer]:
    """Return the peers of `names` that can run on this machine."""
    peers = []
    for name in NAMES:
        if name not in names:
            continue
        try:
            peers.append(MAKERS[name](_python(name, bench_dir)))
        except BenchError as error:
            warn(f"LEFT OUT: {name}: {error}")
    if not peers:
        raise BenchError("no peer is left to measure")
    return peers


def variant(peer: Peer, **changes: str) -> Peer:
    """Return the peer with other options of its maker: `batch`, `slots`, `handler`, `side`."""
    return MAKERS[peer.name](peer.python, **changes)


def _python(name: str, bench_dir: Path) -> str:
    if name not in KITS:
        return sys.executable
    if name == CELERY and (why := redis.missing()):
        raise BenchError(why)
    kit = KITS[name]
    base: Path | None = Path(sys.executable)
    if kit.newer and (base := venv.python_of(venv.NEWER)) is None:
        raise BenchError(
            f"it needs Python {venv.NEWER}, and there is none"
            f" (neither python{venv.NEWER} on PATH nor ~/.pyenv/versions/{venv.NEWER}*)"
        )
    assert base is not None  # noqa: S101 - for the type checker
    return str(venv.make(bench_dir / f"venv-{name}", base, kit.packages))
