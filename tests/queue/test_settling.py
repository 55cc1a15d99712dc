"""After the handlers: who is told, what is counted, and what stays to be written."""

from collections.abc import Iterator
from typing import Any

import pytest

from gnl_django.core.heartbeat import Heartbeat
from gnl_django.core.leases import Lease
from gnl_django.models import Job
from gnl_django.queue import outcomes
from gnl_django.queue.execution import Execution, Outbox
from gnl_django.queue.kinds import JobKind
from gnl_django.queue.listing import JobSummary
from gnl_django.queue.metrics import COUNTERS, Ledger
from gnl_django.queue.settling import Settling, counters_of
from gnl_django.queue.store.base import Outcome, Reaped, Settled
from gnl_django.signals import job_finished
from tests.conformance import support_claim as s
from tests.conformance.conftest import Declare

pytestmark = pytest.mark.django_db(transaction=True)

Errors = list[tuple[BaseException, JobSummary | None]]


class Bench:
    """A Settling with what it needs, and executions that have ended as the test says."""

    def __init__(self, kind: JobKind[Any], on_error: Any = None) -> None:
        self.kind = kind
        self.ledger = Ledger(10)
        self.roster: dict[tuple[int, str], Execution] = {}
        self.heart = Heartbeat(lambda held: [], ttl=30, using="default", name="t")
        self.settling = Settling(
            self.ledger, self.heart, self.roster, on_error, s.store().recorded, using="default"
        )

    def ended(self, outcome: Any = None, error: BaseException | None = None) -> Execution:
        """Claim the next job and let its handler end: `ended(s.succeed)`."""
        row, token = s.claim_one()
        execution = Execution(
            row, Lease(row.id, token, good_at=0.0), self.kind, Outbox(lambda: None), "default"
        )
        self.ledger.taken(self.ledger.reserve(1), 1)
        self.settling.started([execution])
        self.heart.hold([execution.lease])
        self.ledger.ended()
        execution.outcome = outcome(row, token) if outcome else None
        execution.error = error
        return execution

    def settle(self, *ended: Execution, most: int = 100) -> list[Outcome]:
        """Write what has ended; return the outcomes that were sent."""
        sent = self.settling.outcomes(ended, most)
        self.settling.settled(s.store().settle(sent))
        return sent

    @property
    def counted(self) -> dict[str, int]:
        metrics = self.ledger.snapshot()
        return {name: value for name in COUNTERS if (value := getattr(metrics, name))}


@pytest.fixture
def kind(declare: Declare) -> JobKind[Any]:
    return declare(s.KIND)


@pytest.fixture
def errors() -> Errors:
    return []


@pytest.fixture
def bench(kind: JobKind[Any], errors: Errors) -> Bench:
    return Bench(kind, lambda error, job: errors.append((error, job)))


@pytest.fixture
def finished() -> Iterator[list[Any]]:
    seen: list[Any] = []

    def receive(sender: object, *, signal: object, **values: Any) -> None:
        seen.append(values)

    job_finished.connect(receive)
    yield seen
    job_finished.disconnect(receive)


def canceled(row: Any, token: str) -> Outcome:
    return outcomes.canceled(Lease(row.id, token, good_at=0.0))


def dead(row: Any, token: str) -> Outcome:
    return s.fail(row, token, state="dead")


def deferred(row: Any, token: str) -> Outcome:
    return Outcome(row.id, token, "scheduled", refund=True, deferred=True, delay=1.0)


@pytest.mark.parametrize(
    ("outcome", "counted", "state"),
    [
        (s.succeed, {"completed": 1}, "succeeded"),
        (s.fail, {"retried": 1}, "scheduled"),
        (dead, {"failed": 1, "dead_lettered": 1}, "dead"),
        (canceled, {"canceled": 1}, "canceled"),
        (deferred, {"deferred": 1}, "scheduled"),
    ],
)
def test_each_end_is_counted_in_its_own_place(
    bench: Bench, outcome: Any, counted: dict[str, int], state: str
) -> None:
    (job,) = s.add(["a"])
    execution = bench.ended(outcome)
    bench.settle(execution)
    assert s.states() == {job: state}
    assert bench.counted == {"runs": 1, **counted}
    assert (bench.settling.open, bench.roster, bench.heart.held()) == (0, {}, [])


def test_a_release_is_counted_as_such(bench: Bench) -> None:
    s.add(["a"])
    execution = bench.ended()
    execution.outcome = outcomes.released(execution.lease)
    assert counters_of(execution, "ready") == ("released",)
    assert counters_of(execution, None) == ("lost",)


@pytest.mark.row("queue", "C64")
def test_a_lost_job_is_neither_written_nor_kept(
    bench: Bench, errors: Errors, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "gnl_django")
    (job,) = s.add(["a"])
    execution = bench.ended(s.fail, ValueError("nobody reads this"))
    execution.lease.signal.revoke("lease-lost")
    assert bench.settle(execution) == []
    assert s.states() == {job: "running"}
    assert bench.counted == {"runs": 1, "lost": 1}
    assert errors == []
    assert [r.getMessage() for r in caplog.records] == [
        f"StaleClaim: job {job} of kind {s.KIND} was lost before its outcome could be written"
    ]


def test_a_job_that_the_workers_stop_has_given_back_is_not_counted_twice(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "gnl_django")
    s.add(["a"])
    execution = bench.ended()
    bench.roster.clear()
    execution.lease.signal.revoke("lease-lost")
    bench.settle(execution)
    assert bench.counted == {"runs": 1}
    assert bench.settling.open == 0
    assert caplog.records == []


def test_an_answer_that_the_row_is_held_keeps_the_outcome_for_the_next_pass(bench: Bench) -> None:
    s.add(["a"])
    execution = bench.ended(s.succeed)
    (outcome,) = bench.settling.outcomes([execution], 100)
    bench.settling.settled([Settled(outcome.id, outcome.token, None, locked=True)])
    assert (bench.settling.open, len(bench.heart.held())) == (1, 1)
    assert bench.settle() == [outcome]
    assert bench.counted == {"runs": 1, "completed": 1}


def test_no_more_outcomes_are_taken_than_asked_for(bench: Bench) -> None:
    s.add(["a"] * 3)
    ended = [bench.ended(s.succeed) for _ in range(3)]
    assert [len(bench.settle(*ended, most=2)), len(bench.settle(most=2))] == [2, 1]


@pytest.mark.row("queue", "C109")
def test_one_stale_outcome_does_not_keep_the_others_from_being_written(bench: Bench) -> None:
    jobs = s.add(["a"] * 3)
    ended = [bench.ended(s.succeed) for _ in range(3)]
    Job.objects.filter(id=jobs[1]).update(claim_token="f" * 32)
    bench.settle(*ended)
    assert list(s.states().values()) == ["succeeded", "running", "succeeded"]
    assert bench.counted == {"runs": 3, "completed": 2, "lost": 1}


def test_on_error_is_called_once_for_each_failed_attempt_with_the_job_as_it_is_now(
    bench: Bench, errors: Errors
) -> None:
    first, second, third, fourth = s.add(["a", "b", "c", "d"])
    no = ValueError("no")
    bench.settle(
        bench.ended(s.fail, no), bench.ended(dead, no), bench.ended(s.succeed),
        bench.ended(canceled, no),
    )  # fmt: skip
    assert {(error, job and (job.id, job.state, job.org)) for error, job in errors} == {
        (no, (first, "scheduled", "a")),
        (no, (second, "dead", "b")),
    }
    assert len(errors) == 2
    assert s.states()[third] == "succeeded"
    assert s.states()[fourth] == "canceled"


def test_on_error_that_raises_is_logged_and_the_next_one_is_called(
    kind: JobKind[Any], caplog: pytest.LogCaptureFixture
) -> None:
    called: list[Any] = []

    def on_error(error: BaseException, job: JobSummary | None) -> None:
        called.append(job and job.id)
        raise RuntimeError("of on_error itself")

    bench = Bench(kind, on_error)
    jobs = s.add(["a", "b"])
    bench.settle(bench.ended(s.fail, ValueError()), bench.ended(s.fail, ValueError()))
    assert called == jobs
    assert caplog.text.count("on_error failed for job") == 2


def test_final_states_are_announced_and_others_are_not(bench: Bench, finished: list[Any]) -> None:
    first, second, _ = s.add(["a", "b", "c"])
    bench.settle(bench.ended(dead), bench.ended(s.succeed), bench.ended(s.fail))
    assert {(told["job_id"], told["org"], told["state"]) for told in finished} == {
        (first, "a", "dead"),
        (second, "b", "succeeded"),
    }
    assert len(finished) == 2


def test_what_reap_took_back_is_counted_and_announced(bench: Bench, finished: list[Any]) -> None:
    bench.settling.reaped([Reaped(1, "k", "a", "ready"), Reaped(2, "k", "", "dead")])
    assert bench.counted == {"reaped": 2}
    assert finished == [{"job_id": 2, "kind": "k", "org": None, "state": "dead"}]


@pytest.mark.parametrize("lease", ["kept", "lost"])
@pytest.mark.parametrize(
    ("outcome", "counted"),
    [
        (s.succeed, {"completed": 1}),
        (s.fail, {"retried": 1}),
        (dead, {"failed": 1, "dead_lettered": 1}),
        (canceled, {"canceled": 1}),
        (deferred, {"deferred": 1}),
    ],
)
def test_an_outcome_whose_commit_nobody_answered_counts_as_what_the_row_says(
    bench: Bench, outcome: Any, counted: dict[str, int], lease: str
) -> None:
    s.add(["a"])
    execution = bench.ended(outcome)
    s.store().settle([execution.outcome])
    if lease == "lost":  # the heartbeat found nothing of ours any more
        execution.lease.signal.revoke("lease-lost")
    bench.settle(execution)
    assert bench.counted == {"runs": 1, **counted}
    assert (bench.settling.open, bench.settling.running, bench.roster) == (0, 0, {})


@pytest.mark.parametrize("outcome", [s.succeed, s.fail, dead])
def test_an_outcome_that_came_after_a_reap_is_lost_whatever_became_of_the_job(
    bench: Bench, outcome: Any
) -> None:
    (job,) = s.add(["a"])
    execution = bench.ended(outcome)
    with s.later(s.LONG + 1):
        s.store().reap()
        (again,) = s.store().settle([s.succeed(*s.claim_one())])
    assert again.state == "succeeded"
    bench.settle(execution)
    assert bench.counted == {"runs": 1, "lost": 1}
    assert s.states() == {job: "succeeded"}
