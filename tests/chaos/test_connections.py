"""F5: the server kills a worker's connections at every place where that could hurt."""

import os
from collections.abc import Callable

import pytest
from django.db import connection

from gnl_django.models import Attempt, Job
from tests.chaos.conftest import TTL, Give, Run
from tests.chaos.errors import kill_connections
from tests.chaos.test_failpoints import SCENES, expire_a_claim
from tests.checkers import check_all
from tests.history import Recorder
from tests.support import vendor, wait_until

ROUNDS = int(os.environ.get("GNL_CHAOS_ROUNDS", "1"))
POINTS = sorted(
    f"{area}.{moment}"
    for area in SCENES
    for moment in ("updated", "committed")
    if area not in {"handler", "release"}
)

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.postgres("SQLite has no connection that a server could kill"),
    pytest.mark.mysql("SQLite has no connection that a server could kill"),
]


def judge(recorder: Recorder) -> None:
    check_all(recorder.history(faulted=True, cut=True, ttl=20)).assert_green()


@pytest.mark.row("queue", "C105")
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("turn", range(ROUNDS))
def test_a_worker_whose_connections_are_killed_in_a_transaction_goes_on(
    point: str, turn: int, worker: Run, give_job: Give, recorder: Recorder
) -> None:
    scene = SCENES[point.partition(".")[0]]
    options = dict(scene.options)
    if point.startswith("renew"):
        options["seconds"] = 3.0  # longer than a third of the lease
    if scene.expired:
        expire_a_claim(give_job)
    give_job("first", scene.do, **options)
    give_job("beside", org="b")
    cut = worker(failpoints={point: "wait@1"}, ttl=6 if scene.ttl != TTL else 20)
    cut.wait_point(point)
    assert kill_connections() > 0
    cut.release(point)
    wait_until(lambda: not Job.objects.filter(finished_at=None), 40, describe=cut.output)
    cut.term()
    assert cut.wait() == 0
    judge(recorder)
    # A worker that lives loses nothing to the lease: whatever it held it has settled.
    lost = Attempt.objects.filter(outcome="lease_lost").count()
    assert lost == (1 if scene.expired else 0), cut.output()


@pytest.mark.row("queue", "C105")
def test_a_worker_whose_connections_are_killed_while_idle_and_in_a_handler_goes_on(
    worker: Run, give_job: Give, recorder: Recorder
) -> None:
    cut = worker(ttl=20, max_poll=0.2)
    cut.wait_line("serves")
    give_job("warm")
    wait_until(lambda: not Job.objects.filter(finished_at=None), 40, describe=cut.output)
    kill_connections()
    held = give_job("held", "hold")
    wait_until(lambda: len(recorder.history().told("start")) == 2, 40, describe=cut.output)
    kill_connections()
    (recorder.directory / "gate").touch()
    wait_until(lambda: not Job.objects.filter(finished_at=None), 40, describe=cut.output)
    cut.term()
    assert cut.wait() == 0
    judge(recorder)
    assert Job.objects.get(id=held).state == "succeeded"


#: How a session is told that the server may end it when it idles for a moment.
IDLE = {
    "postgresql": {"options": "-c idle_session_timeout=300"},
    "mysql": {"init_command": "SET SESSION wait_timeout = 1"},
}


@pytest.mark.row("queue", "C105")
def test_a_server_that_ends_idle_sessions_while_a_handler_runs_does_no_harm(
    worker: Run, give_job: Give, recorder: Recorder
) -> None:
    options = {**connection.settings_dict["OPTIONS"], **IDLE[vendor()]}
    idle = worker(database={"OPTIONS": options}, ttl=30, poll=3.0, max_poll=3.0, concurrency=1)
    idle.wait_line("serves")
    give_job("held", "wait", seconds=2.5)  # it asks the database before and after
    give_job("after")
    wait_until(lambda: not Job.objects.filter(finished_at=None), 60, describe=idle.output)
    idle.term()
    assert idle.wait() == 0, idle.output()
    judge(recorder)
    assert set(Job.objects.values_list("state", flat=True)) == {"succeeded"}
    assert not Attempt.objects.filter(outcome="lease_lost").exists()


def test_a_client_whose_connection_is_killed_before_its_commit_has_stored_nothing(
    run: Run, give_job: Give, recorder: Recorder, finish: Callable[..., None]
) -> None:
    from tests.chaos.run import mark

    calls = [{"f": "enqueue_many", "value": [mark(f"b-{n}") for n in range(3)]}]
    client = run(
        "produce",
        str(recorder.client.path),
        calls,
        failpoints={"enqueue.inserted": "wait@1"},
    )
    client.wait_point("enqueue.inserted")
    assert kill_connections() > 0
    client.release("enqueue.inserted")
    assert client.wait() == 0, client.output()
    assert Job.objects.count() == 0
    assert [record["type"] for record in recorder.history().client] == ["invoke", "info"]
    judge(recorder)
