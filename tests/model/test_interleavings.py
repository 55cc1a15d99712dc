"""Two acts on the same job in every order of their steps, on PostgreSQL (reliability.md 5.4)."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, transaction

from gnl_django import cancel_job, enqueue, job, retry_job
from gnl_django.core import failpoints
from gnl_django.core.db import now
from gnl_django.core.heartbeat import Verdict
from gnl_django.core.leases import Lease, new_token
from gnl_django.models import Attempt, Job
from gnl_django.queue.options import kinds
from gnl_django.queue.store import store_for
from gnl_django.queue.store.base import Claimed, ClaimRequest, Outcome
from tests.chaos import plants
from tests.interleave import Explorer, explore

KIND = "model.work"
POINTS = failpoints.POINTS

pytestmark = [
    pytest.mark.postgres("its lock view shows who waits for whom"),
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(300),
]


@pytest.fixture
def explorer(settings: Any) -> Iterator[Explorer]:
    """Two actors that stop at every fail point where another's act could come between."""
    settings.GNL = {**getattr(settings, "GNL", {}), "FAILPOINTS": True}
    job(KIND)(lambda payload: None)
    explorer = Explorer(2, POINTS)
    yield explorer
    explorer.close()
    kinds.forget(KIND)


def counted(runs: int) -> int:
    """Print the number of schedules (pytest -s shows it)."""
    print(f"{runs} schedules")
    return runs


def empty() -> None:
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM gnl_django_attempt")
        cursor.execute("DELETE FROM gnl_django_job")


def claim(ttl: float = 60.0) -> tuple[Claimed, str]:
    token = new_token()
    request = ClaimRequest("default", (KIND,), 1, "", True, (), token, ttl, "w", None)
    return store_for("default").claim(request), token


def running(*, expired: bool) -> tuple[int, str]:
    """Return a claimed job and its token."""
    empty()
    enqueue(KIND)
    taken, token = claim()
    if expired:
        past = now("default")
        Job.objects.update(lease_expires_at=past)
    return taken.rows[0].id, token


def in_steps(explorer: Explorer, act: Callable[[], Any]) -> Callable[[], Any]:
    """Return `act` in a transaction that stops before its COMMIT."""

    def work() -> Any:
        with transaction.atomic():
            answer = act()
            explorer.point("before commit")
        return answer

    return work


@pytest.mark.row("queue", "C45")
@pytest.mark.parametrize("jobs", [1, 2])
def test_two_claims_never_take_the_same_job(explorer: Explorer, jobs: int) -> None:
    def prepare() -> list[Callable[[], Any]]:
        empty()
        for _ in range(jobs):
            enqueue(KIND)
        return [claim, claim]

    def check(answers: list[Any]) -> None:
        taken = {row.id: token for claimed, token in answers for row in claimed.rows}
        assert sum(len(claimed.rows) for claimed, _ in answers) == len(taken) == jobs
        assert dict(Job.objects.values_list("id", "claim_token")) == taken

    assert counted(explore(prepare, check, explorer)) >= 20


@pytest.mark.row("queue", "C68")
def test_a_claim_and_a_cancel_leave_a_job_canceled_or_asked_to_stop(explorer: Explorer) -> None:
    ids: list[int] = []

    def prepare() -> list[Callable[[], Any]]:
        empty()
        ids[:] = [enqueue(KIND)]
        return [claim, in_steps(explorer, lambda: cancel_job(ids[0]))]

    def check(answers: list[Any]) -> None:
        (claimed, token), canceled = answers
        row = Job.objects.get()
        assert canceled is True
        if claimed.rows:
            assert (row.state, row.claim_token) == ("running", token)
            assert row.cancel_requested_at is not None
        else:
            assert (row.state, row.attempt) == ("canceled", 0)

    assert counted(explore(prepare, check, explorer)) >= 14


def test_a_claim_takes_a_job_only_once_it_is_promoted(explorer: Explorer) -> None:
    def prepare() -> list[Callable[[], Any]]:
        empty()
        enqueue(KIND, delay=3600)
        Job.objects.update(run_at=now("default"))
        return [claim, lambda: store_for("default").promote()]

    def check(answers: list[Any]) -> None:
        (claimed, token), _ = answers
        row = Job.objects.get()
        taken = [found.id for found in claimed.rows]
        assert (row.state, row.claim_token) == (("running", token) if taken else ("ready", None))

    assert counted(explore(prepare, check, explorer)) >= 6


@pytest.mark.row("queue", "C68")
def test_a_complete_and_a_reap_give_a_job_one_fate(explorer: Explorer) -> None:
    held: list[tuple[int, str]] = []

    def outcome() -> Any:
        job_id, token = held[0]
        return store_for("default").settle([Outcome(job_id, token, "succeeded")])[0]

    def prepare() -> list[Callable[[], Any]]:
        held[:] = [running(expired=True)]
        return [outcome, lambda: store_for("default").reap()]

    def check(answers: list[Any]) -> None:
        settled, reaped = answers
        if settled.locked:
            settled = outcome()  # tried again with the next pass
        row = Job.objects.get()
        lost = Attempt.objects.filter(outcome="lease_lost").count()
        if settled.state == "succeeded":
            assert (row.state, reaped, lost) == ("succeeded", [], 0)
        else:
            assert settled.state is None
            assert (row.state, len(reaped), lost, row.attempt) == ("ready", 1, 1, 1)

    assert counted(explore(prepare, check, explorer)) >= 6


@pytest.mark.row("queue", "C68")
def test_a_renewal_and_a_reap_agree_who_holds_the_job(explorer: Explorer) -> None:
    held: list[tuple[int, str]] = []

    def renew() -> Verdict:
        lease = Lease(*held[0], good_at=0.0)
        return store_for("default").renew([lease], 60.0)[0][1]

    def prepare() -> list[Callable[[], Any]]:
        held[:] = [running(expired=True)]
        return [renew, lambda: store_for("default").reap()]

    def check(answers: list[Any]) -> None:
        verdict, reaped = answers
        row = Job.objects.get()
        if verdict is Verdict.RENEWED:
            assert (row.state, row.claim_token, reaped) == ("running", held[0][1], [])
            assert row.lease_expires_at is not None
            assert row.lease_expires_at > now("default")
        else:
            assert row.state == ("ready" if reaped else "running")
            assert verdict is not Verdict.CANCELED
            # LOCKED while the reap was under way: the next renewal says the truth.
            assert renew() is (Verdict.GONE if reaped else Verdict.RENEWED)

    assert counted(explore(prepare, check, explorer)) >= 6


@pytest.mark.row("queue", "C116")
def test_of_two_retries_one_revives_the_job(explorer: Explorer) -> None:
    ids: list[int] = []

    def prepare() -> list[Callable[[], Any]]:
        empty()
        ids[:] = [enqueue(KIND)]
        cancel_job(ids[0])
        act = in_steps(explorer, lambda: retry_job(ids[0]))
        return [act, act]

    def check(answers: list[Any]) -> None:
        assert {*answers} == {ids[0], None}
        row = Job.objects.get()
        assert (row.state, row.revivals, row.attempt) == ("ready", 1, 0)

    assert counted(explore(prepare, check, explorer)) >= 4


@pytest.mark.row("queue", "C15")
def test_of_two_enqueues_with_one_key_one_is_stored(explorer: Explorer) -> None:
    def prepare() -> list[Callable[[], Any]]:
        empty()
        return [lambda: enqueue(KIND, 1, key="k"), lambda: enqueue(KIND, 2, key="k")]

    def check(answers: list[Any]) -> None:
        (row,) = Job.objects.all()
        assert set(answers) == {row.id}

    assert counted(explore(prepare, check, explorer)) >= 10


@pytest.mark.row("reliability", "2")
def test_a_reap_that_does_not_lock_is_found_by_one_of_the_orders(
    explorer: Explorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(store_for("default")), "reap", plants.naive_reap)
    with pytest.raises(AssertionError) as raised:
        test_a_complete_and_a_reap_give_a_job_one_fate(explorer)
    assert "schedule [" in raised.value.__notes__[0]
