"""F11: a worker frozen beyond its lease; another finishes its job; it wakes (reliability.md 4)."""

import os
from collections.abc import Callable
from typing import Any

import pytest

from gnl_django.models import Job, Process
from tests.chaos.conftest import Give, Run
from tests.checkers import Report, check_all
from tests.history import Recorder
from tests.support import wait_until

ROUNDS = int(os.environ.get("GNL_CHAOS_ROUNDS", "1"))
LEASE = 1.5  # seconds, of the one that is frozen

pytestmark = pytest.mark.django_db(transaction=True)

Round = Callable[..., Report]


@pytest.fixture
def zombie_round(worker: Run, give_job: Give, recorder: Recorder) -> Round:
    """Freeze a worker at a point, let another claim its job, wake it, let the other finish."""

    def play(point: str, plant: str = "") -> Report:
        job = give_job("gated", "gate")
        zombie = worker(failpoints={point: "stop@1"}, env={"GNL_TEST_PLANT": plant}, ttl=LEASE)
        zombie.wait_stopped()
        other = worker(env={"GNL_TEST_PLANT": plant}, ttl=30, max_poll=0.05, concurrency=1)
        # The frozen holder's lease runs out, and the other's handler stands at the gate.
        wait_until(
            lambda: len(starts(recorder)) == 2,
            40,
            describe=lambda: (other.output(), zombie.output(), str(check_all(recorder.history()))),
        )
        zombie.cont()
        wait_until(
            lambda: recorder.history().told("stale") or Job.objects.get().state == "succeeded",
            40,
            describe=zombie.output,
        )
        # The zombie goes on with other work: it is the only one with free hands in this queue.
        after = give_job("after")
        wait_until(lambda: Job.objects.get(id=after).state == "succeeded", 40)
        (recorder.directory / "gate").touch()
        wait_until(lambda: len(recorder.history().told("end")) == 3, 40)
        wait_until(lambda: Job.objects.get(id=job).state == "succeeded", 40)
        for proc in (zombie, other):
            proc.term()
            assert proc.wait() == 0
        return check_all(
            recorder.history(faulted=True, stopped={str(zombie.pid)}, killed=set(), ttl=LEASE)
        )

    return play


def starts(recorder: Recorder) -> list[dict[str, Any]]:
    return [record for record in recorder.history().told("start") if record["m"] == "gated"]


@pytest.mark.row("queue", "C77")
@pytest.mark.row("guarantees", "G2", "G3")
@pytest.mark.parametrize("point", ["handler.returned", "complete.begin"])
@pytest.mark.parametrize("turn", range(ROUNDS))
def test_a_frozen_worker_that_wakes_after_its_lease_changes_nothing_and_goes_on(
    point: str, turn: int, zombie_round: Round
) -> None:
    report = zombie_round(point)
    report.assert_green()
    assert report.counts["stale"] == 1
    assert report.counts["starts"] == 3
    assert Job.objects.filter(attempt=2, state="succeeded").count() == 1


def test_the_checkers_see_a_settle_that_does_not_name_the_token(zombie_round: Round) -> None:
    assert zombie_round("complete.begin", "complete_without_token").red >= {"Q6", "Q7"}


@pytest.mark.row("queue", "C79")
@pytest.mark.row("reliability", "7")
def test_a_handler_that_keeps_the_gil_beyond_the_lease_is_told_and_its_result_refused(
    worker: Run, give_job: Give, recorder: Recorder
) -> None:
    """F17: no thread of that process can renew meanwhile; the fence holds all the same."""
    os.mkfifo(recorder.directory / "hog")
    hog = worker(ttl=LEASE, max_poll=0.1, concurrency=1)
    # From then on it only reads when there is nothing to do: it will stand still without a lock.
    wait_until(Process.objects.exists, 40, describe=hog.output)
    job = give_job("gated", "hog")
    wait_until(lambda: len(starts(recorder)) == 1, 40, describe=hog.output)
    other = worker(ttl=30, max_poll=0.05)
    wait_until(lambda: Job.objects.get(id=job).state == "succeeded", 40, describe=other.output)
    other.term()
    assert other.wait() == 0, other.output()
    assert [record["attempt"] for record in starts(recorder)] == [1, 2]
    assert not recorder.history().told("revoked")  # it cannot even be told
    after = give_job("after")
    (recorder.directory / "hog").open("w").close()
    wait_until(lambda: Job.objects.get(id=after).state == "succeeded", 40, describe=hog.output)
    hog.term()
    assert hog.wait() == 0, hog.output()
    assert [record["why"] for record in recorder.history().told("revoked")] == ["lease-lost"]
    assert Job.objects.get(id=job).attempt == 2
    report = check_all(recorder.history(faulted=True, stopped={str(hog.pid)}, ttl=LEASE))
    report.assert_green()
    assert report.counts["stale"] == 1
