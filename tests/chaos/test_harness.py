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
from gnl_django.queue.settling import Settling
from gnl_django.queue.store import postgresql, rowwise, store_for
from gnl_django.queue.store.base import ClaimedRow, ClaimRequest, NewRow, Outcome, Store
from tests.chaos import plants, telling
from tests.chaos.conftest import Give
from tests.chaos.run import give, mark
from tests.checkers import Report, check_all
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
    report = check_all(recorder.history(faulted=True, **known))
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
