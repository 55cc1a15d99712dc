"""What `run_once` leaves behind when something in it fails: nothing open (R34, R48)."""

import pytest
from django.db import OperationalError, transaction

from gnl_django import enqueue
from gnl_django.models import Job
from tests.conformance import support_claim as s
from tests.conformance.conftest import Declare, FailPoint, failpoint

__all__ = ["failpoint"]

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("times", [1, 1_000])
def test_an_error_of_run_once_that_is_not_the_databases_reaches_the_caller_and_leaves_nothing_open(
    declare: Declare, failpoint: FailPoint, times: int
) -> None:
    declare(s.KIND)
    failures = iter([True] * times)

    def strike() -> None:
        if next(failures, False):
            raise RuntimeError("a fault of ours")

    failpoint("complete.begin", strike)
    job = enqueue(s.KIND)
    with s.employed(poll=0.02) as worker:
        with pytest.raises(RuntimeError, match="a fault of ours"):
            worker.run_once()
        metrics = worker.metrics()
        assert (metrics.runs, metrics.active, worker.holding()) == (1, 0, 0)
        assert (metrics.completed, metrics.lost) == ((1, 0) if times == 1 else (0, 1))
        assert worker.stop(0) is True
    # What could not be written at a second try either is left to its lease.
    assert s.states()[job] == ("succeeded" if times == 1 else "running")


def test_a_pass_that_fails_at_its_second_queue_settles_what_the_first_has_given(
    declare: Declare, failpoint: FailPoint
) -> None:
    declare(s.KIND)
    jobs = [enqueue(s.KIND, queue=queue) for queue in ("high", "low")]
    claims = iter([False, True])

    def strike() -> None:
        if next(claims, False):
            raise RuntimeError("a fault of ours")

    failpoint("claim.begin", strike)
    with s.employed(("high", "low"), poll=0.02) as worker:
        with pytest.raises(RuntimeError, match="a fault of ours"):
            worker.run_once()
        assert worker.holding() == 0
        assert s.states() == dict(zip(jobs, ["succeeded", "ready"], strict=True))


def test_in_the_callers_transaction_too_an_error_of_a_settle_leaves_nothing_open(
    declare: Declare, failpoint: FailPoint
) -> None:
    declare(s.KIND)
    enqueue(s.KIND)

    def strike() -> None:
        raise RuntimeError("a fault of ours")

    failpoint("complete.begin", strike)
    with s.employed() as worker, transaction.atomic():
        with pytest.raises(RuntimeError, match="a fault of ours"):
            worker.run_once()
        assert (worker.holding(), worker.metrics().lost) == (0, 1)
        transaction.set_rollback(True)


@pytest.mark.parametrize("at", ["claim.committed", "claim.updated"])
def test_a_claim_that_nobody_answered_is_given_back_at_no_cost(
    declare: Declare, failpoint: FailPoint, at: str
) -> None:
    declare(s.KIND)
    job = enqueue(s.KIND)

    def unanswered() -> None:
        driver = type("OperationalError", (Exception,), {"__module__": "psycopg.errors"})
        raise OperationalError("server closed the connection") from driver("gone")

    failpoint(at, unanswered)
    with s.employed() as worker:
        with pytest.raises(OperationalError, match="server closed"):
            worker.run_once()
        assert worker.holding() == 0
    assert s.states() == {job: "ready"}
    assert Job.objects.get(id=job).attempt == 0
