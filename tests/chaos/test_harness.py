"""The harness itself: with a known fault planted its checker turns red, without it stays green.

The rows are those of reliability.md 6.1 that concern the queue; the row of the token left out of
complete is in test_zombies.py, where a process is frozen for it.
"""

from collections.abc import Callable
from datetime import timedelta
from threading import Event
from typing import Any

import pytest

from gnl_django import Worker
from gnl_django.core import clock, leases
from gnl_django.core.db import now
from gnl_django.core.leases import Lease, new_token
from gnl_django.models import Job
from gnl_django.queue import api, outcomes
from gnl_django.queue.rings import Rings
from gnl_django.queue.settling import Settling
from gnl_django.queue.store import postgresql, rowwise, store_for
from gnl_django.queue.store.base import ClaimedRow, ClaimRequest, NewRow, Outcome, Store
from tests.chaos import plants, run, telling
from tests.chaos.conftest import Give
from tests.chaos.run import give, mark
from tests.checkers import Report, check_all
from tests.conformance.helpers import Call
from tests.history import Recorder
from tests.support import vendor

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("chaos_kinds"),
    pytest.mark.parametrize("planted", [True, False], ids=["planted", "sound"]),
    pytest.mark.row("reliability", "2"),
]

Hook = Callable[[str, Callable[[], object]], None]
Patch = pytest.MonkeyPatch
HOUR = timedelta(hours=1)


def claim(ttl: float = 30.0, n: int = 1) -> list[tuple[ClaimedRow, str]]:
    token = new_token()
    request = ClaimRequest("default", ("chaos.work",), n, "", True, (), token, ttl, "w", None)
    return [(row, token) for row in store_for("default").claim(request).rows]


def settle(taken: tuple[ClaimedRow, str]) -> str | None:
    (answer,) = store_for("default").settle([Outcome(taken[0].id, taken[1], "succeeded")])
    return answer.state


def judge(recorder: Recorder, planted: bool, *rules: str, **known: Any) -> Report:
    """Check that exactly a planted fault turns the rules red."""
    report = check_all(recorder.history(**{"faulted": True, **known}))
    if planted:
        assert report.red >= set(rules), str(report)
    else:
        report.assert_green()
    return report


def plant_reap(patch: Patch, reap: Callable[[Store], Any]) -> None:
    patch.setattr(type(store_for("default")), "reap", reap)


@pytest.mark.parametrize(("act", "rule"), [("renew", "Q5"), ("complete", "Q7")])
def test_a_reap_that_does_not_repeat_its_conditions(
    planted: bool,
    act: str,
    rule: str,
    recorder: Recorder,
    give_job: Give,
    failpoint: Hook,
    monkeypatch: Patch,
) -> None:
    give_job("a")
    (held,) = claim(ttl=0.01)
    Event().wait(0.03)

    def holder_acts() -> None:
        if act == "renew":
            store_for("default").renew([Lease(held[0].id, held[1], good_at=0.0)], 30.0)
        else:
            settle(held)

    if planted:
        plant_reap(monkeypatch, plants.naive_reap)
    if planted or vendor() == "postgresql":
        failpoint("reap.selected", holder_acts)  # elsewhere the row is locked by then
    else:
        holder_acts()
    store_for("default").reap()
    for taken in claim():
        settle(taken)
    judge(recorder, planted, rule)


@pytest.mark.row("queue", "C73")
def test_a_reap_that_costs_no_attempt(
    planted: bool, recorder: Recorder, give_job: Give, monkeypatch: Patch
) -> None:
    give_job("poison", "die", always=True, max_attempts=2)
    if planted:
        plant_reap(monkeypatch, plants.free_reap(type(store_for("default")).reap))
    for _ in range(4):
        claim(ttl=0.001)
        Event().wait(0.005)
        store_for("default").reap()
    judge(recorder, planted, "Q8", "Q19", killed={"somebody"})


def test_a_release_that_costs_an_attempt(
    planted: bool,
    recorder: Recorder,
    give_job: Give,
    monkeypatch: Patch,
    finish: Callable[..., None],
) -> None:
    give_job("long", "wait")
    if planted:
        sound = outcomes.released
        monkeypatch.setattr(outcomes, "released", lambda lease: sound(lease)._replace(refund=False))
    telling.worker_starts()
    worker = Worker(ttl=5, poll=0.02)
    worker.start()
    while not recorder.history().told("start"):
        Event().wait(0.01)
    assert worker.stop(0.01) is False
    Job.objects.update(payload=mark("long")["payload"])  # the next attempt ends at once
    finish()
    report = check_all(recorder.history(faulted=True))
    assert report.red - {"Q12"} == ({"Q8"} if planted else set()), str(report)


@pytest.mark.row("guarantees", "G8")
@pytest.mark.row("queue", "C76")
def test_a_worker_that_trusts_its_own_clock_for_leases(
    planted: bool, recorder: Recorder, give_job: Give
) -> None:
    give_job("a")
    claim()

    def second_worker() -> None:
        store_for("default").reap()
        for taken in claim():
            settle(taken)

    if planted:
        with clock.override(now("default") + HOUR):
            second_worker()
    else:
        second_worker()
    judge(recorder, planted, "Q5")


@pytest.mark.row("guarantees", "G8")
def test_a_worker_that_trusts_its_own_clock_for_due_times(
    planted: bool, recorder: Recorder, give_job: Give
) -> None:
    give_job("later", delay=1800.0)

    def second_worker() -> None:
        store_for("default").promote()
        for taken in claim():
            settle(taken)

    if planted:
        with clock.override(now("default") + HOUR):
            second_worker()
    else:
        second_worker()
    judge(recorder, planted, "Q10")


@pytest.mark.row("guarantees", "G1")
@pytest.mark.parametrize("how", [plants.no_transaction, plants.commit_in_finally])
def test_an_enqueue_many_that_commits_a_part(
    planted: bool, how: Any, recorder: Recorder, failpoint: Hook, monkeypatch: Patch
) -> None:
    passed: list[int] = []

    def second_chunk_fails() -> None:
        passed.append(1)
        if len(passed) == 2:
            raise RuntimeError("in the middle")

    for module in (postgresql, rowwise):
        monkeypatch.setattr(module, "INSERT_BATCH", 2)
    failpoint("enqueue_many.chunk", second_chunk_fails)
    if planted:
        monkeypatch.setattr(api, "own_transaction", how)
    give(recorder.client, "enqueue_many", [mark(f"batch-{n}") for n in range(4)])
    assert len(passed) == 2
    judge(recorder, planted, "Q3")


def test_a_key_that_is_looked_up_without_its_unique_index(
    planted: bool, recorder: Recorder, give_job: Give, monkeypatch: Patch
) -> None:
    store = type(store_for("default"))
    insert, nested = store.insert, []

    def look_then_insert(self: Any, row: NewRow) -> int:
        for found in Job.objects.filter(org=row.org, key=row.key).values_list("id", flat=True):
            return int(found)
        if not nested:
            nested.append(1)
            give_job("second", key="same")
        return int(insert(self, row._replace(dedup=None)))

    if planted:
        monkeypatch.setattr(store, "insert", look_then_insert)
    give_job("first", key="same")
    if not planted:
        give_job("second", key="same")
    judge(recorder, planted, "Q4")


@pytest.mark.row("queue", "C37")
def test_a_worker_that_claims_by_id_instead_of_by_turns(
    planted: bool, recorder: Recorder, give_job: Give, monkeypatch: Patch
) -> None:
    for number in range(5):
        give_job(f"a-{number}", org="a")
    for number in range(2):
        give_job(f"b-{number}", org="b")
    telling.worker_starts()
    if planted:  # each claim begins at the oldest job's lane, as a new worker's first does
        sound = Rings.claim

        def claim_oldest(self: Rings, *args: Any, **options: Any) -> Any:
            self._cursors.clear()
            return sound(self, *args, **options)

        monkeypatch.setattr(Rings, "claim", claim_oldest)
    Worker(concurrency=1, poll=0.02).run_until_idle()
    assert not Job.objects.exclude(state="succeeded").exists()
    judge(recorder, planted, "Q13", faulted=False, lag=0.0)


def test_a_claim_that_passes_over_the_first_of_its_lane(
    planted: bool, recorder: Recorder, give_job: Give
) -> None:
    first = give_job("first", priority=5)
    give_job("second")
    if planted:
        Job.objects.filter(id=first).update(kind="chaos.held")  # so that the claim does not see it
    taken = claim()
    Job.objects.filter(id=first).update(kind="chaos.work")
    for job in [*taken, *claim()]:
        assert settle(job) == "succeeded"
    judge(recorder, planted, "Q13", lag=0.0)


@pytest.mark.row("queue", "C27")
def test_a_depth_that_is_not_counted(
    planted: bool, recorder: Recorder, give_job: Give, monkeypatch: Patch
) -> None:
    if planted:
        monkeypatch.setattr(Store, "depth", lambda *args: 0)
    for number in range(4):
        give_job(f"a-{number}", org="a", max_depth=2)
    assert Job.objects.count() == (4 if planted else 2)
    judge(recorder, planted, "Q14")


@pytest.mark.row("queue", "C31")
@pytest.mark.postgres("elsewhere callers at once may exceed the depth")
def test_a_depth_that_is_counted_without_the_lanes_lock(
    planted: bool, recorder: Recorder, give_job: Give, failpoint: Hook, monkeypatch: Patch
) -> None:
    others: list[Call] = []

    def second_caller() -> None:
        if not others:
            others.append(Call(lambda: give_job("second", org="a", max_depth=1)))
            if planted:
                others[0].result()

    if planted:
        monkeypatch.setattr(type(store_for("default")), "lock_lane", lambda *args: None)
    failpoint("enqueue.inserted", second_caller)
    give_job("first", org="a", max_depth=1)
    others[0].result()
    assert Job.objects.count() == (2 if planted else 1)
    judge(recorder, planted, "Q14")


@pytest.mark.row("queue", "C125")
def test_a_list_whose_pages_are_counted_off(
    planted: bool,
    recorder: Recorder,
    give_job: Give,
    monkeypatch: Patch,
    finish: Callable[..., None],
) -> None:
    jobs = [give_job(f"a-{number}") for number in range(6)]
    finish()
    pruned = iter([jobs[0]])

    def prune_one() -> None:
        if job := next(pruned, None):
            Job.objects.filter(id=job).delete()

    if planted:
        monkeypatch.setattr(run, "list_all_jobs", plants.offset_pages)
    assert run.walk(recorder.client, 2, between=prune_one) is not None
    judge(recorder, planted, "Q17", lag=0.0)


def test_a_death_by_reap_that_nobody_announces(
    planted: bool,
    recorder: Recorder,
    give_job: Give,
    monkeypatch: Patch,
    finish: Callable[..., None],
) -> None:
    give_job("a", max_attempts=1, do="gate")
    claim(ttl=0.001)
    Event().wait(0.005)
    monkeypatch.setattr(leases, "MIN_TTL", 0.01)
    if planted:
        monkeypatch.setattr(Settling, "reaped", lambda self, jobs: None)
    finish()
    assert Job.objects.get().state == "dead"
    judge(recorder, planted, "Q20")
