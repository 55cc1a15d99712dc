"""F1: a process dies by SIGKILL at every fail point, and the guarantee holds (reliability.md 4)."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from gnl_django.core import failpoints
from gnl_django.models import Attempt, Job
from tests.chaos.conftest import TTL, Give, Run
from tests.chaos.run import claim_and_vanish, mark
from tests.chaos.runs.test_kills import POINTS as RUN_POINTS
from tests.checkers import check_all
from tests.history import Recorder
from tests.support import vendor, wait_until

ROUNDS = int(os.environ.get("GNL_CHAOS_ROUNDS", "1"))
SLOW = 1.5  # seconds of lease where a worker must live to its renewal, however busy the machine


@dataclass(frozen=True)
class Scene:
    """What brings a worker to an area's fail points: the first job and what else is needed."""

    do: str = "end"
    options: tuple[tuple[str, Any], ...] = ()
    term: bool = False
    expired: bool = False
    ttl: float = TTL


SCENES = {
    "promote": Scene(options=(("delay", 0.02),)),
    "claim": Scene(),
    "handler": Scene(),
    "renew": Scene("wait", (("seconds", 3.0),), ttl=SLOW),
    "complete": Scene(),
    "retry": Scene("fail"),
    "bury": Scene("bury"),
    "cancel": Scene("cancel", ttl=SLOW),
    "release": Scene("wait", (("seconds", 3.0),), term=True, ttl=SLOW),
    "reap": Scene(expired=True),
}
WORKER_POINTS = sorted(p for p in failpoints.POINTS if p.partition(".")[0] in SCENES)
CLIENT_POINTS = ("enqueue.begin", "enqueue.inserted", "enqueue.committed", "enqueue_many.chunk")
OTHERS = ("bulk.chunk", "prune.selected", "prune.deleted")

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.row("reliability", "3")
def test_every_fail_point_of_the_code_is_killed_at() -> None:
    assert {*WORKER_POINTS, *CLIENT_POINTS, *OTHERS, *RUN_POINTS} == failpoints.POINTS


def assert_holds(recorder: Recorder, **known: Any) -> None:
    check_all(recorder.history(faulted=True, ttl=SLOW, **known)).assert_green()


def expire_a_claim(give_job: Give, **options: Any) -> int:
    """Claim a job for somebody who is gone already."""
    job: int = give_job("expired", **options)
    claim_and_vanish()
    return job


@pytest.mark.row("queue", "C155")
@pytest.mark.parametrize("point", WORKER_POINTS)
@pytest.mark.parametrize("nth", range(1, ROUNDS + 1))
def test_a_worker_killed_at_a_fail_point_loses_and_doubles_nothing(
    point: str,
    nth: int,
    worker: Run,
    give_job: Give,
    recorder: Recorder,
    finish: Callable[..., None],
) -> None:
    if point == "claim.selected" and vendor() == "postgresql":
        return  # the claim is one statement there
    scene = SCENES[point.partition(".")[0]]
    if scene.expired:
        expire_a_claim(give_job, max_attempts=1 + nth % 2)
    give_job("first", scene.do, **dict(scene.options))
    for number in range(3):
        give_job(f"beside-{number}", org=f"org-{number}")
    victim = worker(failpoints={point: f"kill@{nth}"}, grace=0.05, ttl=scene.ttl)
    if scene.term:
        wait_until(lambda: any(r["m"] == "first" for r in recorder.history().told("start")), 40)
        victim.term()
    # A point may be passed fewer than n times: then an honest end is fine too.
    wait_until(
        lambda: not victim.running or (nth > 1 and not Job.objects.filter(finished_at=None)),
        40,
        describe=victim.output,
    )
    assert nth > 1 or victim.wait() == -signal.SIGKILL
    victim.kill()
    finish()
    assert_holds(recorder, killed={str(victim.pid)})


@pytest.mark.row("queue", "C24", "C155")
@pytest.mark.parametrize(
    ("point", "many", "nth"),
    [
        ("enqueue.begin", 0, 1),
        ("enqueue.inserted", 0, 1),
        ("enqueue.committed", 0, 1),
        ("enqueue.inserted", 12, 1),
        ("enqueue.committed", 12, 1),
        ("enqueue_many.chunk", 12, 1),
        ("enqueue_many.chunk", 5_001, 2),
    ],
)
def test_a_client_killed_while_it_enqueues_has_stored_all_or_nothing(
    point: str,
    many: int,
    nth: int,
    run: Run,
    give_job: Give,
    recorder: Recorder,
    finish: Callable[..., None],
) -> None:
    one = mark("one", key="the-key")
    call = {"f": "enqueue", "value": one}
    if many:
        call = {"f": "enqueue_many", "value": [mark(f"batch-{n}") for n in range(many)]}
    client = run(
        "produce",
        str(recorder.client.path),
        [call],
        failpoints={point: f"kill@{nth}"},
    )
    assert client.wait() == -signal.SIGKILL, client.output()
    stored = Job.objects.count()
    assert stored == ((many or 1) if point == "enqueue.committed" else 0)
    if not many:
        # Who does not know repeats with the same key, and gets the one job.
        assert give_job("again", key="the-key") is not None
        assert Job.objects.count() == 1
        finish()
    history = recorder.history(faulted=True, killed={str(client.pid)})
    report = check_all(history)
    assert not report.violations, str(report)


@pytest.mark.row("queue", "C155")
def test_an_operator_killed_in_a_bulk_retry_can_do_it_again(
    run: Run, give_job: Give, recorder: Recorder, finish: Callable[..., None]
) -> None:
    for number in range(3):
        give_job(f"dead-{number}", "bury")
    finish()
    first = run("revive", failpoints={"bulk.chunk": "kill@1"})
    assert first.wait() == -signal.SIGKILL, first.output()
    assert run("revive").wait() == 0
    assert set(Job.objects.values_list("state", "revivals")) == {("ready", 1)}
    finish()
    assert_holds(recorder, killed={str(first.pid)})


@pytest.mark.row("queue", "C155")
@pytest.mark.parametrize("point", ["prune.selected", "prune.deleted"])
def test_a_prune_that_is_killed_has_deleted_nothing_and_can_be_done_again(
    point: str, run: Run, give_job: Give, recorder: Recorder, finish: Callable[..., None]
) -> None:
    for do in ("end", "bury", "end"):
        give_job(do, do)
    finish()
    waiting = give_job("waiting", delay=3600.0)
    first = run("prune_all", failpoints={point: "kill@1"})
    assert first.wait() == -signal.SIGKILL, first.output()
    assert Job.objects.count() == 4
    again = run("prune_all")
    assert again.wait() == 0, again.output()
    assert list(Job.objects.values_list("id", flat=True)) == [waiting]
    assert not Attempt.objects.exists()
    assert_holds(recorder, killed={str(first.pid)})
