"""The database is away while a handler runs, for less and for more than its lease (C103, C104).

On PostgreSQL and MariaDB a proxy refuses every connection; on SQLite somebody holds the write lock
for longer than the worker waits for it.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection

from gnl_django.models import Attempt, Job, Process
from tests.chaos.conftest import Give, Run
from tests.checkers import check_all
from tests.history import Recorder
from tests.procs import Proc
from tests.proxy import Proxy
from tests.support import vendor, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

#: What the worker says in a pass that finds no database.
SAID = {"sqlite": "a pass failed and the loop goes on"}
AWAY = "the database does not serve"


class Outage:
    """A database that a child reaches by `database`, and that is away inside `away()`."""

    def __init__(self, database: dict[str, Any], away: Callable[[], Any]) -> None:
        self.database = database
        self.away = away


@contextmanager
def locked() -> Iterator[None]:
    """Hold the write lock of the SQLite file."""
    other = sqlite3.connect(str(connection.settings_dict["NAME"]), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


@pytest.fixture
def outage() -> Iterator[Outage]:
    """Return what can take the database away from a child."""
    known = connection.settings_dict
    if vendor() == "sqlite":
        yield Outage({"OPTIONS": {**known["OPTIONS"], "timeout": 0.05}}, locked)
        return
    with Proxy((known["HOST"] or "127.0.0.1", int(known["PORT"]))) as proxy:

        @contextmanager
        def cut() -> Iterator[None]:
            proxy.reset()
            yield
            proxy.pass_on()

        yield Outage({"HOST": "127.0.0.1", "PORT": str(proxy.port)}, cut)


def said(worker: Proc, times: int) -> None:
    """Wait until the worker has missed the database so often."""
    worker.wait_line(SAID.get(vendor(), AWAY), count=times)


def starts(recorder: Recorder) -> list[int]:
    return [record["attempt"] for record in recorder.history().told("start")]


@pytest.mark.row("queue", "C103")
def test_an_outcome_waits_for_a_database_that_is_away_when_the_handler_ends(
    outage: Outage, worker: Run, give_job: Give, recorder: Recorder
) -> None:
    job = give_job("held", "hold")
    steady = worker(database=outage.database, ttl=30)
    wait_until(lambda: starts(recorder), 40, describe=steady.output)
    with outage.away():
        (recorder.directory / "gate").touch()
        said(steady, 3)
    wait_until(lambda: Job.objects.get(id=job).state == "succeeded", 40, describe=steady.output)
    steady.term()
    assert steady.wait() == 0, steady.output()
    check_all(recorder.history(faulted=True, cut=True, ttl=30)).assert_green()
    assert starts(recorder) == [1]
    assert not Attempt.objects.exists()
    assert Process.objects.get().completed == 1


@pytest.mark.row("queue", "C104")
def test_an_outage_longer_than_the_lease_costs_the_attempt_and_the_job_runs_again(
    outage: Outage, worker: Run, give_job: Give, recorder: Recorder
) -> None:
    job = give_job("held", "wait", seconds=60.0)
    cut = worker(database=outage.database, ttl=1.5, max_poll=0.1)
    wait_until(lambda: starts(recorder), 40, describe=cut.output)
    with outage.away():
        wait_until(lambda: recorder.history().told("revoked"), 40, describe=cut.output)
        said(cut, 1)
    wait_until(lambda: Job.objects.get(id=job).state == "succeeded", 40, describe=cut.output)
    cut.term()
    assert cut.wait() == 0, cut.output()
    check_all(recorder.history(faulted=True, cut=True, ttl=1.5)).assert_green()
    assert [record["why"] for record in recorder.history().told("revoked")] == ["lease-lost"]
    assert starts(recorder) == [1, 2]
    assert list(Attempt.objects.values_list("number", "outcome")) == [(1, "lease_lost")]
    assert Job.objects.get(id=job).attempt == 2
