"""Giving jobs back at a stop: nothing is lost, nothing is charged, nobody waits for long (R44)."""

from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest

from gnl_django import cancel_job
from gnl_django.core.heartbeat import Heartbeat
from gnl_django.core.leases import Lease
from gnl_django.models import Attempt, Job
from gnl_django.queue import ending
from gnl_django.queue.execution import Execution, Outbox
from gnl_django.queue.kinds import JobKind
from gnl_django.queue.metrics import Ledger
from tests.conformance import support_claim as s
from tests.conformance.conftest import Declare, failpoint, finished
from tests.queue.test_rings import held
from tests.support import wait_until

__all__ = ["failpoint", "finished"]

pytestmark = pytest.mark.django_db(transaction=True)

LOCKS = "SQLite has one writer, nobody holds single rows"


class Stopping:
    """A worker's parts at its stop, with jobs whose handlers run or have ended."""

    def __init__(self, kind: JobKind[Any]) -> None:
        self.kind = kind
        self.ledger = Ledger(10)
        self.roster: dict[tuple[int, str], Execution] = {}
        self.heart = Heartbeat(lambda held: [], ttl=30, using="default", name="t")

    def running(self) -> Execution:
        """Claim the next job, as if its handler ran."""
        row, token = s.claim_one()
        lease = Lease(row.id, token, good_at=0.0)
        execution = Execution(row, lease, self.kind, Outbox(lambda: None), "default")
        self.ledger.taken(self.ledger.reserve(1), 1)
        self.roster[row.id, token] = execution
        self.heart.hold([lease])
        return execution

    def give_back(self, notice: float = 0.0) -> float:
        """Give everything back; return how long it took."""
        began = monotonic()
        ending.give_back(self.roster, self.ledger, self.heart, s.store(), notice=notice)
        return monotonic() - began


@pytest.fixture
def stopping(declare: Declare) -> Stopping:
    return Stopping(declare(s.KIND))


@pytest.mark.row("queue", "C134")
def test_a_running_job_is_revoked_and_given_back_at_no_cost(stopping: Stopping) -> None:
    (job,) = s.add(["a"])
    execution = stopping.running()
    stopping.give_back()
    stored = Job.objects.get(id=job)
    assert execution.lease.signal.why == "lease-lost"
    assert (stored.state, stored.attempt, stored.claim_token) == ("ready", 0, None)
    attempt = Attempt.objects.get(job=job)
    assert (attempt.outcome, attempt.number, attempt.error_class) == ("released", 1, "")
    assert (stopping.roster, stopping.heart.held()) == ({}, [])
    assert stopping.ledger.snapshot().released == 1


def test_an_outcome_that_was_known_before_is_written_instead(
    stopping: Stopping, finished: list[Any]
) -> None:
    (job,) = s.add(["a"])
    execution = stopping.running()
    execution.outcome = s.succeed(execution.row, execution.lease.token)
    stopping.give_back()
    assert s.states() == {job: "succeeded"}
    assert not execution.lease.signal.revoked
    assert stopping.ledger.snapshot().completed == 1
    assert [told["state"] for told in finished] == ["succeeded"]


def test_a_job_that_was_to_be_canceled_is_canceled(stopping: Stopping) -> None:
    (job,) = s.add(["a"])
    stopping.running()
    cancel_job(job)
    stopping.give_back()
    assert (s.states()[job], Job.objects.get(id=job).attempt) == ("canceled", 0)
    assert stopping.ledger.snapshot().canceled == 1


def test_a_job_that_somebody_else_has_by_now_is_left_alone(stopping: Stopping) -> None:
    (job,) = s.add(["a"])
    stopping.running()
    Job.objects.filter(id=job).update(claim_token="f" * 32)
    stopping.give_back()
    assert s.states() == {job: "running"}
    assert stopping.ledger.snapshot().lost == 1


def test_an_outcome_that_is_written_already_though_nobody_said_so_counts_as_what_it_is(
    stopping: Stopping,
) -> None:
    (job,) = s.add(["a"])
    execution = stopping.running()
    execution.outcome = s.succeed(execution.row, execution.lease.token)
    s.store().settle([execution.outcome])  # and the answer to its COMMIT is lost
    stopping.give_back()
    assert s.states() == {job: "succeeded"}
    metrics = stopping.ledger.snapshot()
    assert (metrics.completed, metrics.lost) == (1, 0)


def test_a_handler_gets_a_moment_to_notice_and_no_longer_than_it_needs(
    stopping: Stopping,
) -> None:
    (job,) = s.add(["a"])
    execution = stopping.running()
    states: list[str] = []

    def handler() -> None:
        execution.lease.signal.wait(60)
        states.append(s.states()[job])
        stopping.ledger.ended()

    with s.threads() as go:
        ended = go(handler)
        assert stopping.give_back(notice=60.0) < 30
        ended.result(30)
    assert states == ["running"]  # it was told before the row was given back


def test_a_handler_that_pays_no_heed_is_not_waited_for(stopping: Stopping) -> None:
    (job,) = s.add(["a"])
    stopping.running()
    assert stopping.give_back(notice=0.2) >= 0.2
    assert s.states() == {job: "ready"}


def test_nothing_to_give_back_asks_nobody(stopping: Stopping) -> None:
    with s.statements() as seen:
        stopping.give_back()
    assert seen == []


@pytest.mark.postgres(LOCKS)
@pytest.mark.mysql(LOCKS)
def test_a_row_that_somebody_holds_is_tried_again_and_the_others_do_not_wait(
    stopping: Stopping,
) -> None:
    first, second = s.add(["a", "b"])
    stopping.running()
    stopping.running()
    with s.threads() as go:
        with held([first]):
            giving = go(stopping.give_back)
            wait_until(lambda: s.states()[second] == "ready")
            assert s.states()[first] == "running"
        giving.result(30)
    assert s.states() == {first: "ready", second: "ready"}


@pytest.mark.postgres(LOCKS)
@pytest.mark.mysql(LOCKS)
def test_a_row_held_for_too_long_is_left_to_its_lease(
    stopping: Stopping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "PATIENCE", 0.3)
    (job,) = s.add(["a"])
    stopping.running()
    with held([job]):
        stopping.give_back()
    assert s.states() == {job: "running"}


def test_without_a_database_the_leases_are_left_to_run_out(
    stopping: Stopping,
    failpoint: Callable[[str, Callable[[], None]], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    (job,) = s.add(["a"])
    stopping.running()

    def down() -> None:
        raise RuntimeError("down")

    failpoint("release.begin", down)
    stopping.give_back()
    assert s.states() == {job: "running"}
    assert "1 jobs cannot be given back; their leases run out" in caplog.text
