"""Fixtures of the fault tests: the zygote, the recorder, the kinds, and their end."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections

from gnl_django import Worker
from gnl_django.core import failpoints, leases
from gnl_django.models import Job
from gnl_django.queue.kinds import JobKind
from gnl_django.queue.options import kinds
from tests.chaos import telling
from tests.chaos.run import give, mark
from tests.checkers import TOTALS
from tests.history import ClientLog, Recorder, install_audit, remove_audit
from tests.procs import Proc
from tests.support import wait_until
from tests.zygote import Zygote

TTL = 0.5  # seconds: of the children's leases
OPEN = ("scheduled", "ready", "running")

#: Lines about long runs, printed at the end of the session.
counted: list[str] = []

Run = Callable[..., Proc]
Give = Callable[..., Any]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what the storms have counted, and the sum over all fault tests.

    With GNL_CHAOS_REPORT also into that file, from which `tests.run` prints it at its end.
    """
    if not TOTALS["histories"]:
        return
    names = ("histories", "jobs", "starts", "kills", "stale", "lost", "doubled")
    figures = ", ".join(f"{name} {TOTALS[name]:,}" for name in names)
    lines = [*counted, f"all fault tests on {connection.vendor}: {figures}"]
    for line in lines:
        terminalreporter.write_line(line)
    if path := os.environ.get("GNL_CHAOS_REPORT"):
        with Path(path).open("a") as report:
            report.write("".join(f"{line}\n" for line in lines))


@pytest.fixture(scope="session")
def _zygote(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    zygote = Zygote(tmp_path_factory.mktemp("zygote"))
    yield zygote
    zygote.close()


@pytest.fixture
def recorder(transactional_db: None, tmp_path: Path) -> Iterator[Recorder]:
    """Record this test: audit triggers, the effect log, and a log of the test's own calls."""
    remove_audit()
    install_audit()
    recorder = Recorder(tmp_path)
    telling.begin(tmp_path, "test")
    yield recorder
    telling.end()
    recorder.client.close()
    remove_audit()


@pytest.fixture
def run(_zygote: Zygote, recorder: Recorder) -> Iterator[Run]:
    """Start a child at the test database: `run("worker", {...}, failpoints={...})`.

    The name is a function of tests.chaos.run, or "module:function" of another.
    """
    procs: list[Proc] = []

    def start(name: str, *args: Any, **options: Any) -> Proc:
        env = {"GNL_TEST_HISTORY": str(recorder.directory), **options.pop("env", {})}
        database = {"NAME": connection.settings_dict["NAME"], **options.pop("database", {})}
        target = name if ":" in name else f"tests.chaos.run:{name}"
        proc = _zygote.run(target, *args, env=env, database=database, **options)
        procs.append(proc)
        return proc

    yield start
    for proc in procs:
        proc.close()


@pytest.fixture
def worker(run: Run) -> Run:
    """Start a `gnl_worker` child: `worker(failpoints={"claim.committed": "kill@1"}, ttl=2)`."""

    def start(
        *, failpoints: Any = "", env: Any = None, database: Any = None, **options: Any
    ) -> Proc:
        chosen = {"ttl": TTL, "min_ttl": 0.05, "poll": 0.05, "concurrency": 4, "grace": 5.0}
        return run(
            "worker",
            {**chosen, **options},
            failpoints=failpoints,
            env=env or {},
            database=database or {},
        )

    return start


@pytest.fixture
def chaos_kinds() -> Iterator[None]:
    """Register the handlers of `tests.chaos.background` in this process."""
    from tests.chaos import background

    declared = [value for value in vars(background).values() if isinstance(value, JobKind)]
    for kind in declared:
        kinds.register(kind.kind, kind)
    yield
    for kind in declared:
        kinds.forget(kind.kind)


@pytest.fixture
def give_job(chaos_kinds: None, recorder: Recorder) -> Give:
    """Enqueue and log: `give_job("name", "fail", org="a") -> id`."""
    return partial(_give, recorder.client)


def _give(client: ClientLog, m: str, do: str = "end", **options: Any) -> Any:
    return give(client, "enqueue", mark(m, do, **options))


@pytest.fixture
def finish(chaos_kinds: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Run an honest worker in this process until no job is open: `finish()`."""
    monkeypatch.setattr(leases, "MIN_TTL", 0.01)
    workers: list[Worker] = []

    def work(timeout: float = 60.0) -> None:
        honest = Worker(concurrency=4, ttl=5.0, poll=0.02)
        workers.append(honest)
        telling.worker_starts()

        def done() -> bool:
            honest.run_once()
            return not Job.objects.filter(state__in=OPEN).exists()

        wait_until(done, timeout, describe=lambda: list(Job.objects.values("id", "state")))

    yield work
    for honest in workers:
        honest.stop(30)


@pytest.fixture
def failpoint(settings: Any) -> Iterator[Callable[[str, Callable[[], object]], None]]:
    """Call something of this test whenever a fail point is hit."""
    settings.GNL = {**getattr(settings, "GNL", {}), "FAILPOINTS": True}
    names: set[str] = set()

    def hook(name: str, call: Callable[[], object]) -> None:
        failpoints.hook(name, call)
        names.add(name)

    yield hook
    for name in names:
        failpoints.hook(name, None)


@pytest.fixture(autouse=True)
def _close_own_connection() -> Iterator[None]:
    yield
    connections["default"].close_if_unusable_or_obsolete()
