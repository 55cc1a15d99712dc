"""SQLite as Django opens it: DEFERRED transactions, no WAL, five seconds of patience (C146)."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, connections

from gnl_django.models import Attempt, Job
from tests.anywhere.conftest import troubles
from tests.chaos.conftest import OPEN, Run
from tests.history import Recorder
from tests.support import wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.sqlite("the others have more than one writer"),
    pytest.mark.row("queue", "C146"),
]

SECONDS = min(60.0, float(os.environ.get("GNL_CHAOS_SECONDS", "20")))
#: Django's own, and what is recommended but for the mode of transactions.
DEFAULTS: dict[str, Any] = {}
WAL: dict[str, Any] = {"init_command": "PRAGMA journal_mode=WAL;"}
WORKERS = 4

Place = Callable[[dict[str, Any]], dict[str, Any]]


@pytest.fixture
def place(recorder: Recorder, tmp_path: Path) -> Iterator[Place]:
    """Move this test to a new file with these options: a file keeps its journal's mode."""
    known = connection.settings_dict
    before = {name: known[name] for name in ("NAME", "OPTIONS")}
    connections.close_all()

    def make(options: dict[str, Any]) -> dict[str, Any]:
        here = {"NAME": str(tmp_path / "project.sqlite3"), "OPTIONS": options}
        known.update(here)
        call_command("migrate", verbosity=0)
        return here

    yield make
    connections.close_all()
    known.update(before)


def mode() -> tuple[str, str | None]:
    """Return the journal's mode and that of transactions."""
    wrapper: Any = connection
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA journal_mode")
        return cursor.fetchone()[0], wrapper.transaction_mode


def crowd(run: Run, worker: Run, database: dict[str, Any], seconds: float) -> None:
    """Let four workers and a web process write at once; nobody is ever refused."""
    workers = [worker(database=database, ttl=30, max_poll=0.2) for _ in range(WORKERS)]
    for one in workers:
        one.wait_line("serves", 40)
    web = run("tests.anywhere.writers:main", "web", seconds, database=database)
    assert web.wait(seconds + 60) == 0, web.output()
    turns = int(web.output().split()[1])
    assert turns > 0

    def drained() -> bool:
        return not Job.objects.filter(state__in=OPEN).exists()

    wait_until(drained, 60 + 3 * seconds, describe=lambda: [w.output()[-500:] for w in workers])
    for one in workers:
        one.term()
    for one in workers:
        assert one.wait(40) == 0, one.output()
        assert not troubles(one.output())
    # Eight jobs a turn, and the child of the one whose first attempt fails.
    assert Job.objects.filter(state="succeeded").count() == 8 * turns
    others = Attempt.objects.exclude(outcome="failed", error_class="builtins.ValueError")
    assert not list(others.values_list("outcome", "error_class", "message"))
    assert Attempt.objects.count() == turns
    assert len(set(Job.objects.values_list("worker", flat=True))) > 1


def test_four_workers_and_a_web_process_share_one_writer_for_a_moment(
    run: Run, worker: Run, place: Place
) -> None:
    crowd(run, worker, place(DEFAULTS), 0.5)
    assert mode() == ("delete", None)


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize("options", [DEFAULTS, WAL], ids=["defaults", "WAL"])
def test_four_workers_and_a_web_process_share_one_writer(
    run: Run, worker: Run, place: Place, options: dict[str, Any]
) -> None:
    crowd(run, worker, place(options), SECONDS)
    assert mode() == ("wal" if options else "delete", None)
