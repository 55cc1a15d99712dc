"""F4: the server is stopped at once in the middle of a claim, and started again (G9)."""

from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from django.core.management import call_command
from django.db import connection, connections

from gnl_django.models import Job
from testproject.servers import PrivateMariaDB, PrivatePostgres
from tests.chaos.conftest import Give, Run
from tests.checkers import check_all
from tests.history import Recorder, install_audit
from tests.procs import Proc
from tests.support import vendor, wait_until

REASON = "SQLite has no server"
POINTS = ("claim.updated", "claim.committed", "complete.updated")
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.django_db(transaction=True),
    pytest.mark.postgres(REASON),
    pytest.mark.mysql(REASON),
]

Server = PrivatePostgres | PrivateMariaDB


@pytest.fixture
def server(recorder: Recorder) -> Iterator[Server]:
    """Move this test to a server of its own that keeps what it commits."""
    known = connection.settings_dict
    before = {name: known[name] for name in ("HOST", "PORT", "NAME", "USER", "PASSWORD")}
    cls = PrivatePostgres if vendor() == "postgresql" else PrivateMariaDB
    with cls(durable=True) as own:
        own.create("chaos")
        connections.close_all()
        user = "postgres" if vendor() == "postgresql" else "root"
        here = {"HOST": "127.0.0.1", "PORT": str(own.port), "NAME": "chaos", "USER": user}
        known.update(here | {"PASSWORD": ""})
        try:
            call_command("migrate", verbosity=0)
            install_audit()
            yield own
        finally:
            connections.close_all()
            known.update(before)


def address() -> dict[str, Any]:
    known = connection.settings_dict
    return {name: known[name] for name in ("HOST", "PORT", "NAME", "USER", "PASSWORD")}


@pytest.mark.row("queue", "C152")
@pytest.mark.row("guarantees", "G9")
@pytest.mark.parametrize(
    "points",
    [
        pytest.param(POINTS[:1], id="one"),
        pytest.param(POINTS, id="three", marks=pytest.mark.chaos),
    ],
)
def test_workers_outlive_immediate_stops_of_their_server_and_lose_nothing(
    points: tuple[str, ...], server: Server, worker: Run, give_job: Give, recorder: Recorder
) -> None:
    steady = worker(database=address(), ttl=5)
    steady.wait_line("serves")
    for turn, point in enumerate(points):
        for number in range(5):
            give_job(f"{turn}-{number}", org=f"org-{number}")
        give_job(f"{turn}-last", delay=0.3)
        cut = worker(database=address(), ttl=2, failpoints={point: "wait@1"})
        stop_and_start(server, steady, cut, point, turn)
        cut.term()
        assert cut.wait() == 0, cut.output()
    steady.term()
    assert steady.wait() == 0, steady.output()
    report = check_all(recorder.history(faulted=True, cut=True, ttl=5))
    report.assert_green()
    assert report.counts["jobs"] == 6 * len(points)


def stop_and_start(server: Server, steady: Proc, cut: Proc, point: str, turn: int) -> None:
    """Stop the server at once while `cut` stands at `point` (or all is done), start it again."""
    wait_until(lambda: "Fail point" in cut.output() or not open_jobs(), 30)
    server.halt("immediate")
    connections.close_all()
    if "Fail point" in cut.output():
        cut.wait_point(point)
        cut.release(point)
    before = psutil.Process(steady.pid).cpu_times()
    steady.wait_line("does not serve", count=turn + 1)
    after = psutil.Process(steady.pid).cpu_times()
    assert after.user - before.user < 1.0  # it waits and does not spin
    server.start()
    wait_until(lambda: not open_jobs(), 60, describe=lambda: steady.output() + cut.output())


def open_jobs() -> list[int]:
    return list(Job.objects.filter(finished_at=None).values_list("id", flat=True))
