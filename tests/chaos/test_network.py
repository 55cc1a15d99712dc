"""F18: the network between worker and database lies (reliability.md 4)."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection

from gnl_django.models import Attempt, Job, Process
from tests.chaos.conftest import Give, Run
from tests.chaos.run import mark
from tests.checkers import check_all
from tests.history import Recorder
from tests.proxy import Proxy
from tests.support import vendor, wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.postgres("SQLite has no network"),
    pytest.mark.mysql("SQLite has no network"),
]

# As they go over the wire: on MySQL a query is announced by the byte 3.
COMMIT = {"postgresql": b"COMMIT\0", "mysql": b"\x03COMMIT"}
CLAIM = {"postgresql": b"progress=NULL", "mysql": b"\x03COMMIT"}


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """Put a proxy before this run's server."""
    known = connection.settings_dict
    with Proxy((known["HOST"] or "127.0.0.1", int(known["PORT"]))) as proxy:
        yield proxy


def through(proxy: Proxy) -> dict[str, Any]:
    return {"HOST": "127.0.0.1", "PORT": str(proxy.port)}


def judge(recorder: Recorder, **known: Any) -> None:
    check_all(recorder.history(faulted=True, cut=True, **known)).assert_green()


@pytest.mark.row("guarantees", "G1")
@pytest.mark.parametrize("many", [0, 5])
def test_a_client_whose_commit_is_answered_by_silence_repeats_with_its_keys(
    many: int,
    proxy: Proxy,
    run: Run,
    give_job: Give,
    recorder: Recorder,
    finish: Callable[..., None],
) -> None:
    calls = [{"f": "enqueue", "value": mark("one", key="key-0")}]
    if many:
        batch = [mark(f"b-{n}", key=f"key-{n}") for n in range(many)]
        calls = [{"f": "enqueue_many", "value": batch}]
    proxy.lose_answer(COMMIT[connection.vendor] if many else b"INSERT INTO gnl_django_job")
    client = run("produce", str(recorder.client.path), calls, database=through(proxy))
    assert client.wait() == 0, client.output()
    assert proxy.struck.is_set()
    history = recorder.history()
    assert [record["type"] for record in history.client] == ["invoke", "info"]
    assert Job.objects.count() == max(many, 1)
    for number in range(max(many, 1)):
        give_job(f"again-{number}", key=f"key-{number}")
    assert Job.objects.count() == max(many, 1)
    finish()
    judge(recorder)


def test_a_claim_whose_answer_is_lost_costs_its_jobs_no_attempt(
    proxy: Proxy, worker: Run, give_job: Give, recorder: Recorder
) -> None:
    proxy.lose_answer(CLAIM[connection.vendor])
    for number in range(3):
        give_job(f"a-{number}")
    claimer = worker(database=through(proxy), ttl=10)
    wait_until(lambda: not Job.objects.filter(finished_at=None), 30, describe=claimer.output)
    assert proxy.struck.is_set()
    claimer.term()
    assert claimer.wait() == 0
    judge(recorder)
    assert not Attempt.objects.filter(outcome="lease_lost").exists(), claimer.output()
    assert set(Job.objects.values_list("attempt", flat=True)) == {1}


def test_a_settle_whose_answer_is_lost_is_repeated_and_changes_nothing_more(
    proxy: Proxy, worker: Run, give_job: Give, recorder: Recorder
) -> None:
    give_job("gated", "hold")
    settler = worker(database=through(proxy), ttl=10)
    wait_until(lambda: recorder.history().told("start"), 40, describe=settler.output)
    proxy.lose_answer(b"succeeded")
    (recorder.directory / "gate").touch()
    wait_until(proxy.struck.is_set, 40, describe=settler.output)
    after = give_job("after")
    wait_until(lambda: Job.objects.get(id=after).state == "succeeded", 40)
    settler.term()
    assert settler.wait() == 0
    history = recorder.history()
    assert len(history.told("start")) == 2
    numbers = Process.objects.get()
    assert (numbers.claimed, numbers.completed) == (2, 2)  # none counts as lost
    assert "StaleClaim" not in settler.output()
    judge(recorder)


def test_a_reset_of_every_connection_is_survived(
    proxy: Proxy, worker: Run, give_job: Give, recorder: Recorder
) -> None:
    worked = worker(database=through(proxy), ttl=10)
    for turn in range(3):
        give_job(f"before-{turn}", "wait", seconds=0.1)
        proxy.reset()
        give_job(f"after-{turn}")
        proxy.pass_on()
    wait_until(lambda: not Job.objects.filter(finished_at=None), 40, describe=worked.output)
    worked.term()
    assert worked.wait() == 0
    judge(recorder)


def test_a_holder_whose_database_answers_nothing_more_learns_that_its_lease_is_lost(
    proxy: Proxy, worker: Run, give_job: Give, recorder: Recorder, finish: Callable[..., None]
) -> None:
    give_job("long", "wait", seconds=60.0)
    silenced = worker(database=through(proxy), ttl=1.5, grace=0.5)
    wait_until(lambda: recorder.history().told("start"), 40, describe=silenced.output)
    proxy.blackhole()
    wait_until(lambda: recorder.history().told("revoked"), 40, describe=silenced.output)
    finish()
    judge(recorder, ttl=1.5)


def test_a_worker_whose_database_answers_nothing_more_still_ends_within_its_limit(
    proxy: Proxy, worker: Run, give_job: Give, recorder: Recorder
) -> None:
    give_job("long", "wait", seconds=90.0)
    silenced = worker(database=through(proxy), ttl=5, grace=0.5)
    wait_until(lambda: recorder.history().told("start"), 40, describe=silenced.output)
    proxy.blackhole()
    silenced.term()
    assert silenced.wait(40) == 0


def test_a_worker_that_comes_back_into_a_silent_network_does_not_hang_in_its_connect(
    proxy: Proxy, worker: Run, give_job: Give, recorder: Recorder
) -> None:
    worked = worker(database=through(proxy), ttl=20, connect=1)
    give_job("before")
    wait_until(lambda: not Job.objects.filter(finished_at=None), 40, describe=worked.output)
    proxy.reset()
    proxy.blackhole()  # it answers the connect, and then nothing
    worked.wait_line("the database does not serve", count=2)
    proxy.pass_on()
    give_job("after")
    wait_until(lambda: not Job.objects.filter(finished_at=None), 40, describe=worked.output)
    worked.term()
    assert worked.wait() == 0
    judge(recorder)


def test_a_worker_whose_server_says_nothing_more_gives_the_connection_up_and_recovers(
    proxy: Proxy, worker: Run, give_job: Give, recorder: Recorder
) -> None:
    if vendor() == "postgresql":
        return  # there the kernel notices that nobody acknowledges; a proxy does acknowledge
    worked = worker(database=through(proxy), ttl=20, connect=1, silence=1)
    give_job("before")
    wait_until(lambda: not Job.objects.filter(finished_at=None), 40, describe=worked.output)
    proxy.blackhole()
    worked.wait_line("the database does not serve")
    proxy.pass_on()
    give_job("after")
    wait_until(lambda: not Job.objects.filter(finished_at=None), 40, describe=worked.output)
    worked.term()
    assert worked.wait() == 0
    judge(recorder)
