"""One pass: upkeep, settle, claim, hand-over, and what is left when one of them fails."""

from collections.abc import Callable, Iterator

import pytest
from django.db import OperationalError, connection

from gnl_django import enqueue
from gnl_django.core.db import now
from gnl_django.core.heartbeat import Heartbeat
from gnl_django.models import Job
from gnl_django.queue.execution import Execution, Outbox, run
from gnl_django.queue.hygiene import tidied
from gnl_django.queue.metrics import Ledger
from gnl_django.queue.passes import Driver, Turn
from gnl_django.queue.pauses import PauseMap
from gnl_django.queue.settling import Settling
from tests.conformance import support_claim as s
from tests.conformance.conftest import Declare, failpoint
from tests.queue.test_rings import held
from tests.support import wait_until

__all__ = ["failpoint"]

Failpoint = Callable[[str, Callable[[], None]], None]


class Bench:
    """A driver whose handlers run when the test says so, in the test's own thread."""

    def __init__(
        self, *, slots: int = 10, queues: tuple[str, ...] = ("default",), poll: float = 60
    ) -> None:
        self.ledger = Ledger(slots)
        self.outbox = Outbox(lambda: None)
        self.handed: list[Execution] = []
        store = s.store()
        heart = Heartbeat(lambda held: store.renew(held, 30), ttl=30, using="default", name="t")
        self.heart = heart
        self.driver = Driver(
            store,
            s.rings(),
            PauseMap("default"),
            self.ledger,
            heart,
            Settling(self.ledger, heart, {}, None, store.recorded, using="default"),
            self.outbox,
            self.handed.extend,
            queues=queues,
            poll=poll,
        )

    def run_all(self) -> None:
        """Run what has been handed over."""
        for execution in self.handed:
            run(execution, tidied)
            self.ledger.ended()
            self.outbox.put(execution)
        self.handed.clear()


@pytest.fixture(autouse=True)
def _kind(declare: Declare) -> None:
    declare(s.KIND)


@pytest.fixture
def bench(transactional_db: None) -> Iterator[Bench]:
    made = Bench()
    yield made
    connection.close()


def test_a_pass_claims_hands_over_in_start_order_and_holds_the_leases(bench: Bench) -> None:
    jobs = s.add(["b", "a", "b"])
    assert bench.driver.turn() == Turn(claimed=3, contended=False)
    assert [execution.row.id for execution in bench.handed] == jobs
    assert sorted(lease.id for lease in bench.heart.held()) == jobs
    assert (bench.driver.open, bench.ledger.active) == (3, 3)


def test_the_next_pass_settles_what_has_ended_and_lets_its_lease_go(bench: Bench) -> None:
    jobs = s.add(["a", "a"])
    bench.driver.turn()
    bench.run_all()
    late = s.add(["a"])
    assert bench.driver.turn().claimed == 1
    assert s.states() == {**dict.fromkeys(jobs, "succeeded"), late[0]: "running"}
    assert [lease.id for lease in bench.heart.held()] == late
    assert bench.ledger.snapshot().completed == 2


def test_a_pass_without_room_settles_only(transactional_db: None) -> None:
    bench = Bench(slots=1)
    first, second = s.add(["a", "a"])
    bench.driver.turn()
    assert bench.driver.turn() == Turn(0, contended=False)
    bench.run_all()
    bench.ledger.draining = True
    assert bench.driver.turn() == Turn(0, contended=False)
    assert s.states() == {first: "succeeded", second: "ready"}
    assert bench.driver.open == 0


def test_outcomes_are_written_once_also_with_several_queues(transactional_db: None) -> None:
    bench = Bench(queues=("high", "default"))
    s.add(["a"])
    s.add(["a"], queue="high")
    assert bench.driver.turn().claimed == 2
    bench.run_all()
    bench.driver.turn()
    assert bench.ledger.snapshot().completed == 2
    assert bench.ledger.snapshot().lost == 0


def test_settling_alone_claims_nothing(bench: Bench) -> None:
    first = s.add(["a"])
    bench.driver.turn()
    late = s.add(["a"])
    bench.driver.settle()
    bench.run_all()
    bench.driver.settle()
    assert s.states() == {first[0]: "succeeded", late[0]: "ready"}


def upkeep(bench: Bench) -> int:
    """Return the number of statements of a pass beside the claim."""
    with s.statements() as seen:
        bench.driver.turn()
    return len([text for text in seen if "'scheduled'" in text or "lease_expires_at <=" in text])


def test_promote_and_reap_run_at_most_once_in_poll_seconds(bench: Bench) -> None:
    assert upkeep(bench) == 2
    assert upkeep(bench) == 0
    quick = Bench(poll=0.0)
    assert [upkeep(quick), upkeep(quick)] == [2, 2]


def test_a_job_known_to_be_due_is_promoted_in_time_whatever_poll_says(bench: Bench) -> None:
    assert bench.driver.until_due() is None
    job = enqueue(s.KIND, delay=0.3)
    bench = Bench()
    assert bench.driver.turn().claimed == 0
    ahead = bench.driver.until_due()
    assert ahead is not None
    assert 0 < ahead <= 0.31
    wait_until(lambda: bench.driver.until_due() == 0.0)
    wait_until(lambda: bench.driver.turn().claimed == 1)
    assert s.states() == {job: "running"}


def test_a_job_that_another_worker_promoted_is_not_waited_for(bench: Bench) -> None:
    job = enqueue(s.KIND, delay=60)
    bench.driver.turn()
    assert 50 < (bench.driver.until_due() or 0) <= 60
    Job.objects.filter(id=job).update(state="ready", run_at=now("default"))
    assert Bench().driver.turn().claimed == 1


def test_reaped_jobs_are_counted(bench: Bench) -> None:
    s.add(["a", "b"])
    s.store().claim(s.request(ttl=0.0))
    assert bench.driver.turn().claimed == 2
    assert bench.ledger.snapshot().reaped == 2


def fails_once(failpoint: Failpoint, point: str, error: Exception) -> None:
    """Raise at the first hit of a fail point."""
    left = [error]

    def strike() -> None:
        if left:
            raise left.pop()

    failpoint(point, strike)


@pytest.mark.row("queue", "C133")
def test_a_claim_that_fails_gives_its_reservation_back(bench: Bench, failpoint: Failpoint) -> None:
    s.add(["a"])
    fails_once(failpoint, "claim.begin", RuntimeError("no"))
    with pytest.raises(RuntimeError):
        bench.driver.turn()
    assert (bench.ledger.snapshot().claiming, bench.ledger.free) == (0, 10)
    assert bench.driver.turn().claimed == 1


@pytest.mark.parametrize("point", ["complete.begin", "complete.updated"])
def test_an_outcome_that_could_not_be_written_is_written_by_the_next_pass(
    bench: Bench, failpoint: Failpoint, point: str
) -> None:
    (job,) = s.add(["a"])
    bench.driver.turn()
    bench.run_all()
    fails_once(failpoint, point, OperationalError("down"))
    with pytest.raises(OperationalError):
        bench.driver.turn()
    assert (s.states(), bench.driver.open) == ({job: "running"}, 1)
    assert [lease.id for lease in bench.heart.held()] == [job]
    bench.driver.turn()
    assert (s.states(), bench.driver.open) == ({job: "succeeded"}, 0)
    assert bench.ledger.snapshot().completed == 1


def test_an_outcome_whose_commit_was_not_confirmed_is_written_once(
    bench: Bench, failpoint: Failpoint
) -> None:
    (job,) = s.add(["a"])
    bench.driver.turn()
    bench.run_all()
    fails_once(failpoint, "complete.committed", OperationalError("no answer"))
    with pytest.raises(OperationalError):
        bench.driver.turn()
    bench.driver.turn()
    assert (s.states(), bench.driver.open) == ({job: "succeeded"}, 0)
    assert bench.heart.held() == []


def test_a_claim_whose_commit_was_not_confirmed_is_read_again_by_its_token(
    bench: Bench, failpoint: Failpoint
) -> None:
    """queue.md R66: claimed rows carry the pass's token and are run or released."""
    (job,) = s.add(["a"])
    fails_once(failpoint, "claim.committed", OperationalError("no answer"))
    with pytest.raises(OperationalError):
        bench.driver.turn()
    bench.driver.turn()
    bench.run_all()
    bench.driver.turn()
    bench.run_all()
    bench.driver.turn()
    assert s.states() == {job: "succeeded"}


@pytest.mark.row("queue", "C109")
@pytest.mark.postgres("SQLite has one writer, nobody holds single rows")
@pytest.mark.mysql("SQLite has one writer, nobody holds single rows")
def test_a_row_that_somebody_holds_is_settled_when_it_is_free(bench: Bench) -> None:
    held_job, other = s.add(["a", "a"])
    bench.driver.turn()
    bench.run_all()
    with held([held_job]):
        bench.driver.turn()
        assert s.states() == {held_job: "running", other: "succeeded"}
        assert bench.driver.open == 1
    bench.driver.turn()
    assert s.states()[held_job] == "succeeded"
    assert bench.ledger.snapshot().completed == 2


def test_at_most_100_outcomes_are_written_in_one_pass(transactional_db: None) -> None:
    bench = Bench(slots=150)
    s.add(["a"] * 150)
    counts = [bench.driver.turn().claimed, bench.driver.turn().claimed]
    assert counts == [100, 50]
    bench.run_all()
    bench.driver.turn()
    assert bench.ledger.snapshot().completed == 100
    bench.driver.turn()
    assert bench.ledger.snapshot().completed == 150


@pytest.mark.postgres("passes of the others look before they lock anyway")
@pytest.mark.row("queue", "C43")
def test_a_pass_of_an_idle_worker_is_one_read_until_there_is_something(bench: Bench) -> None:
    bench.driver.turn()
    with s.statements() as seen:
        assert bench.driver.turn(idle=True) == Turn(0, contended=False)
    assert len(seen) == 1
    enqueue(s.KIND, delay=3_600)
    s.add(["a"], queue="elsewhere")
    with s.statements() as seen:
        assert bench.driver.turn(idle=True).claimed == 0
    assert len(seen) == 1
    assert 3_500 < (bench.driver.until_due() or 0) <= 3_600


@pytest.mark.postgres("passes of the others look before they lock anyway")
@pytest.mark.parametrize("what", ["ready", "due", "expired", "settled late"])
def test_an_idle_look_misses_nothing(bench: Bench, what: str) -> None:
    bench.driver.turn()
    s.add(["a"])
    if what == "due":
        Job.objects.update(state="scheduled", run_at=now("default"))
    elif what == "expired":
        assert s.rings().claim(s.store(), "default", 1).claimed.rows
        Job.objects.update(lease_expires_at=now("default"))
    assert bench.driver.turn(idle=True).claimed == 1
    bench.run_all()
    if what == "settled late":  # the outcome is no row that a look could see
        assert bench.driver.turn(idle=True).claimed == 0
        assert list(Job.objects.values_list("state", flat=True)) == ["succeeded"]


def test_a_pass_that_was_called_claims_first_and_puts_the_rest_off_once(bench: Bench) -> None:
    s.add(["a"])
    Job.objects.update(state="scheduled", run_at=now("default"))
    (second,) = s.add(["a"])
    assert bench.driver.turn(called=True).claimed == 1
    assert [execution.row.id for execution in bench.handed] == [second]
    s.add(["a"])
    assert bench.driver.turn(called=True).claimed == 2
