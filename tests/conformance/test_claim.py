"""Claim and fairness: whose turn it is, and that every job is taken exactly once (C36-C54)."""

from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from itertools import pairwise
from threading import Barrier
from typing import Any

import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gnl_django import JobContext, NewJob, UnknownKind, Worker, enqueue, enqueue_many
from gnl_django.queue import rings as rings_module
from gnl_django.queue.models import Job
from gnl_django.queue.options import kinds as registry
from gnl_django.queue.store import store_for
from tests.conformance import support_claim as s
from tests.conformance.conftest import Declare
from tests.support import vendor

Failpoint = Callable[[str, Callable[[], None]], None]

# Derandomized: the same examples every time, in CI as here.
QUICK = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture(autouse=True)
def _kind(declare: Declare) -> None:
    declare(s.KIND)


@pytest.fixture
def example(db: None) -> Callable[[], Any]:
    """Return a context manager for one example: what it writes is rolled back."""

    class RolledBack:
        def __enter__(self) -> None:
            self.atomic = transaction.atomic()
            self.atomic.__enter__()

        def __exit__(self, *error: Any) -> None:
            transaction.set_rollback(True)
            self.atomic.__exit__(*error)

    return RolledBack


def shuffled_lanes() -> dict[str, list[int]]:
    """Worked example 1: the oldest ready job is in b; a, b, c have 20 jobs, one is ownerless."""
    orgs = ["b", "", *(["c", "a", "b"] * 20)][:-1]
    made: dict[str, list[int]] = {}
    for job_id, org in zip(s.add(orgs), orgs, strict=True):
        made.setdefault(org, []).append(job_id)
    return made


# worked example 1


@pytest.mark.row("queue", "C36")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("prepare", [False, True])
@pytest.mark.parametrize("inside", [False, True], ids=["autocommit", "atomic"])
def test_lanes_take_turns_as_in_the_worked_example(prepare: bool, inside: bool) -> None:
    lanes = shuffled_lanes()
    rings = s.rings()
    store = store_for("default", prepare=prepare)
    with transaction.atomic() if inside else nullcontext():
        passes = [rings.claim(store, "default", 7) for _ in range(3)]
    assert [s.lanes(taken) for taken in passes] == [
        ["b", "c", "", "a", "b", "c"],
        ["a", "b", "c", "a", "b", "c", "a"],
        ["b", "c", "a", "b", "c", "a", "b"],
    ]
    assert s.ids(passes[0]) == [
        *(lanes[org][0] for org in ("b", "c", "", "a")),
        lanes["b"][1],
        lanes["c"][1],
    ]
    assert [taken.claimed.lanes for taken in passes] == [4, 3, 3]
    assert Job.objects.filter(state="running", attempt=1).count() == 20


# F1 to F5


@pytest.mark.row("queue", "C37")
@pytest.mark.django_db
@pytest.mark.parametrize("k", [1, 2, 5])
def test_any_k_consecutive_claims_serve_k_lanes_once_each(k: int) -> None:
    s.add([f"org-{at % k}" for at in range(k * 50)])
    rings, store = s.rings(), s.store()
    starts = [s.lanes(rings.claim(store, "default", 1))[0] for _ in range(k * 50)]
    for at in range(len(starts) - k + 1):
        assert len(set(starts[at : at + k])) == k, f"starts {at} to {at + k}"
    assert s.ids(rings.claim(store, "default", 1)) == []


#: Names in which code-point order differs from any other: case, accents, planes beyond the first.
orgs = st.text(st.characters(exclude_categories=("C", "Z")), max_size=3)


@pytest.mark.row("queue", "C38")
@given(
    lanes=st.lists(orgs, min_size=1, max_size=12, unique=True),
    n=st.sampled_from([3, 7, 10]),
    order=st.randoms(use_true_random=False),
)
@QUICK
def test_lanes_with_a_backlog_are_served_evenly_whatever_a_pass_takes(
    example: Callable[[], Any], lanes: list[str], n: int, order: Any
) -> None:
    with example():
        k, passes = len(lanes), 3
        each = passes * -(-n // min(k, n)) + 1  # nobody runs out
        waiting = [lane for lane in lanes for _ in range(each)]
        order.shuffle(waiting)
        s.add(waiting)
        rings, store = s.rings(), s.store()
        starts = [org for _ in range(passes) for org in s.lanes(rings.claim(store, "default", n))]
        assert len(starts) == passes * n
        for at in range(len(starts) - k + 1):
            assert len(set(starts[at : at + k])) == k, f"starts {at} to {at + k} of {starts}"


@pytest.mark.row("queue", "C38", "C40")
@given(
    jobs=st.lists(st.tuples(orgs, st.sampled_from([-100, -5, 0, 5, 100])), min_size=1, max_size=60),
    takes=st.lists(st.integers(1, 12), min_size=1, max_size=12),
)
@QUICK
def test_every_pass_takes_exactly_what_the_rules_say_in_their_order(
    example: Callable[[], Any], jobs: list[tuple[str, int]], takes: list[int]
) -> None:
    with example():
        made = enqueue_many(
            [NewJob(s.KIND, org=org or None, priority=priority) for org, priority in jobs]
        )
        ready: dict[str, list[tuple[int, int]]] = {}
        for job_id, (org, priority) in zip(made, jobs, strict=True):
            ready.setdefault(org, []).append((job_id, priority))
        model, rings, store = s.Ring(ready), s.rings(), s.store()
        for n in takes:
            assert s.ids(rings.claim(store, "default", n)) == model.claim(n)


@pytest.mark.row("queue", "C39")
@pytest.mark.django_db
def test_a_newcomer_is_next_or_the_one_after_it_however_long_anothers_backlog() -> None:
    s.fill(30_000, lane="0")
    rings, store = s.rings(), s.store()
    assert s.lanes(rings.claim(store, "default", 1)) == ["lane-0"]
    s.add(["B"])
    starts = [s.lanes(rings.claim(store, "default", 1))[0] for _ in range(2)]
    assert "B" in starts


@pytest.mark.row("queue", "C39")
@pytest.mark.django_db
@pytest.mark.parametrize("newcomer", ["lane-0", "lane-00", "lane-50", "lane-99", "zz"])
def test_one_job_among_100_lanes_waits_for_at_most_99_others(newcomer: str) -> None:
    s.fill(990, lane="n % 99 + 1")
    rings, store = s.rings(), s.store()
    for _ in range(3):
        rings.claim(store, "default", 10)
    own = s.add([newcomer])[0]
    Job.objects.filter(org=newcomer, state="ready").exclude(id=own).delete()
    waited = 0
    while own not in s.ids(rings.claim(store, "default", 1)):
        waited += 1
        assert waited <= 99


@pytest.mark.row("queue", "C40")
@pytest.mark.django_db
def test_inside_a_lane_priority_decides_then_the_id() -> None:
    wanted = [0, -5, 5, 0, 5, -5]
    made = [enqueue(s.KIND, priority=priority) for priority in wanted]
    taken = s.rings().claim(s.store(), "default", 6)
    assert s.ids(taken) == [made[at] for at in (2, 4, 0, 3, 1, 5)]


@pytest.mark.row("queue", "C40")
@pytest.mark.django_db
def test_priority_does_not_push_a_lane_before_another() -> None:
    s.add(["a", "a"])
    s.add(["b", "b"], priority=100)
    assert s.lanes(s.rings().claim(s.store(), "default", 3)) == ["a", "b", "a"]


@pytest.mark.row("queue", "C41")
@pytest.mark.django_db
def test_a_lane_that_was_idle_for_a_week_has_earned_no_credit() -> None:
    s.add(["b"] * 30 + ["c"] * 30)
    rings, store = s.rings(), s.store()
    with s.later(0) as clock:
        for _ in range(6):
            rings.claim(store, "default", 1)
            clock.advance(timedelta(days=1, hours=4))
        s.add(["a"] * 10)
        starts = [s.lanes(rings.claim(store, "default", 1))[0] for _ in range(15)]
    assert starts.count("a") == 5
    assert all(one != two for one, two in pairwise(starts))


@pytest.mark.row("queue", "C42")
@pytest.mark.django_db
@pytest.mark.parametrize("n", [1, 4])
def test_jobs_enqueued_together_start_like_jobs_enqueued_one_by_one(n: int) -> None:
    wanted = [("x", 0), ("a", 5), ("x", 5), ("m", 0), ("a", 0), ("x", -5), ("m", 7), ("", 0)]
    enqueue_many(
        [
            NewJob(s.KIND, at, org=org or None, priority=priority, queue="many")
            for at, (org, priority) in enumerate(wanted)
        ]
    )
    for at, (org, priority) in enumerate(wanted):
        enqueue(s.KIND, at, org=org or None, priority=priority, queue="single")

    def order(queue: str) -> list[str | None]:
        rings = s.rings()
        passes = [rings.claim(s.store(), queue, n) for _ in range(len(wanted))]
        return [row.payload for taken in passes for row in taken.claimed.rows]

    many = order("many")
    assert sorted(map(str, many)) == [str(at) for at in range(len(wanted))]
    assert many == order("single")


# F6: the number of statements


def idle_statements(worker: Worker) -> list[str]:
    """Return the statements of one pass that finds nothing."""
    with s.statements() as seen:
        assert worker.run_once() == 0
    # The pauses are read once a second (R65), which may fall into this pass or not.
    return [text for text in seen if "gnl_django_queuestate" not in text]


@pytest.mark.row("queue", "C43")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("served_before", [False, True])
def test_an_idle_pass_costs_the_same_statements_with_0_1_and_10000_orgs(
    served_before: bool,
) -> None:
    with s.employed(("default", "other")) as worker:
        worker.run_once()  # questions that are asked once a connection
        if served_before:
            s.add(["m"])
            s.add(["m"], queue="other")
            assert worker.run_once() == 2
        counts = [len(idle_statements(worker))]
        for orgs in (1, 10_000):
            for state in ("scheduled", "running", "succeeded"):
                s.fill(orgs, state, lane="n", ahead="3600 + n")
            s.fill(orgs, queue="elsewhere", lane="n")
            counts.append(len(idle_statements(worker)))
    # One to promote, one to reap, one for each queue (R11).
    assert counts == [4, 4, 4]


@pytest.mark.row("queue", "C43")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("n", [1, 10])
def test_a_claim_costs_the_same_statements_with_10_and_10000_orgs(n: int) -> None:
    store = s.store()
    counts = []
    for orgs in (n, 10_000):
        s.fill(orgs, lane="n")
        rings = s.rings()
        store.first_lane("default", (s.KIND,))
        with s.statements() as seen:
            assert len(s.ids(rings.claim(store, "default", n))) == n
        counts.append(len(seen))
    # One more finds the first lane: once a worker and queue (R14).
    expected = {"postgresql": 1 + 1, "sqlite": 1 + 2, "mysql": 1 + n + 2}[vendor()]
    assert counts[1] == expected
    # With no more lanes than slots MySQL looks once more whether the ring has ended.
    assert counts[0] in {expected, expected + 1 if vendor() == "mysql" else expected}


@pytest.mark.row("queue", "C43")
@pytest.mark.django_db(transaction=True)
@pytest.mark.postgres("the others look for lanes first (R21, R22)")
def test_a_later_claim_is_one_statement_on_postgresql() -> None:
    s.add(["a", "b", "c"] * 5)
    rings, store = s.rings(), s.store()
    rings.claim(store, "default", 2)
    with s.statements() as seen:
        assert len(s.ids(rings.claim(store, "default", 10))) == 10
    assert len(seen) == 1


# F7: a held row never looks like an empty queue


@pytest.mark.row("queue", "C44")
@pytest.mark.django_db(transaction=True)
@pytest.mark.postgres("SQLite has one writer: see the test with eight workers")
@pytest.mark.mysql("SQLite has one writer: see the test with eight workers")
def test_a_worker_goes_on_to_the_next_lane_when_another_holds_the_first() -> None:
    held, free = s.add(["a", "b"])
    with s.threads() as go:
        gate = s.Gate()

        def hold() -> None:
            with transaction.atomic():
                Job.objects.select_for_update().get(id=held)
                gate()

        holding = go(hold)
        gate.wait_reached()
        rings, store = s.rings(), s.store()
        with s.statements() as seen:
            taken = rings.claim(store, "default", 1)
        gate.open()
        holding.result()
    assert s.ids(taken) == [free]
    assert not taken.contended
    if vendor() == "postgresql":
        assert len(seen) == 1 + 2  # the first lane, then a's lane in vain, then b's


@pytest.mark.row("queue", "C44")
@pytest.mark.django_db(transaction=True)
def test_eight_workers_at_once_all_get_a_job_of_two_lanes(failpoint: Failpoint) -> None:
    made = s.add(["a", "b"] * 4)
    barrier = Barrier(8)
    one_writer = vendor() == "sqlite"

    def wait_for_all() -> None:
        # Nobody commits before all eight hold a job; a look in vain does not count.
        if not one_writer and Job.objects.filter(state="running").exists():
            barrier.wait(s.DEADLINE)

    failpoint("claim.updated", wait_for_all)

    def claim() -> list[int]:
        if one_writer:
            barrier.wait(s.DEADLINE)
        return s.ids(s.rings().claim(s.store(), "default", 1))

    with s.threads() as go:
        taken = [future.result() for future in [go(claim) for _ in range(8)]]
    assert s.flat(taken) == made


@pytest.mark.row("queue", "C44")
@pytest.mark.django_db(transaction=True)
@pytest.mark.postgres("SQLite has one writer, nobody holds single rows")
@pytest.mark.mysql("SQLite has one writer, nobody holds single rows")
def test_a_ring_whose_jobs_are_all_held_is_contended_not_empty() -> None:
    made = s.add([f"org-{at:02}" for at in range(20)])
    with s.threads() as go:
        gate = s.Gate()

        def hold() -> None:
            with transaction.atomic():
                list(Job.objects.select_for_update().filter(id__in=made[:-1]).order_by("id"))
                gate()

        holding = go(hold)
        gate.wait_reached()
        rings, store = s.rings(), s.store()
        crowded = rings.claim(store, "default", 1)
        again = rings.claim(store, "default", 1)
        gate.open()
        holding.result()
    # After 16 lanes it gives up for this pass (R16); the next goes on behind them.
    assert rings_module.PASSES_MAX == 16
    assert (s.ids(crowded), crowded.contended) == ([], True)
    assert (s.ids(again), again.contended) == ([made[-1]], False)


@pytest.mark.row("queue", "C45")
@pytest.mark.django_db(transaction=True)
def test_four_claimers_take_100_jobs_once_each() -> None:
    made = s.add([f"org-{at % 7}" for at in range(100)])
    start = Barrier(4)

    def claim() -> list[int]:
        rings, store, mine = s.rings(), s.store(), []
        start.wait(s.DEADLINE)
        while taken := s.ids(rings.claim(store, "default", 10)):
            mine += taken
        return mine

    with s.threads() as go:
        taken = [future.result() for future in [go(claim) for _ in range(4)]]
    assert s.flat(taken) == made
    assert set(s.states().values()) == {"running"}


@pytest.mark.row("queue", "C54")
@pytest.mark.django_db(transaction=True)
@pytest.mark.postgres("SQLite has one writer: the second claim waits")
@pytest.mark.mysql("SQLite has one writer: the second claim waits")
def test_two_claims_in_open_transactions_take_different_rows(failpoint: Failpoint) -> None:
    made = s.add(["a"] * 10)
    barrier = Barrier(2)
    failpoint("claim.updated", lambda: barrier.wait(s.DEADLINE))
    with s.threads() as go:
        claims = [go(lambda: s.ids(s.rings().claim(s.store(), "default", 5))) for _ in range(2)]
        one, two = (claim.result() for claim in claims)
    assert len(one) == len(two) == 5
    assert sorted(one + two) == made


@pytest.mark.row("queue", "C54")
@pytest.mark.django_db(transaction=True)
@pytest.mark.sqlite("the others have more than one writer")
def test_on_sqlite_a_second_claim_waits_for_the_first_and_takes_other_rows(
    failpoint: Failpoint,
) -> None:
    made = s.add(["a"] * 10)
    gate = s.Gate(first_only=True)
    failpoint("claim.updated", gate)
    with s.threads() as go:
        first = go(lambda: s.ids(s.rings().claim(s.store(), "default", 5)))
        gate.wait_reached()
        second = go(lambda: s.ids(s.rings().claim(s.store(), "default", 5)))
        assert not second.done()
        gate.open()
        assert first.result() == made[:5]
        assert second.result() == made[5:]


# order and membership of the ring


@pytest.mark.row("queue", "C46")
@pytest.mark.django_db
def test_a_retried_and_a_promoted_job_keep_their_place_by_id() -> None:
    failed, scheduled = s.add(["a"])[0], s.add(["a"], delay=60)[0]
    store = s.store()
    row, token = s.claim_one()
    younger = s.add(["a", "a"])
    store.settle([s.fail(row, token, state="ready", delay=0.0)])
    with s.later(61):
        store.promote()
    assert row.id == failed
    assert s.ids(s.rings().claim(store, "default", 4)) == [failed, scheduled, *younger]


@pytest.mark.row("queue", "C47")
@pytest.mark.django_db
def test_the_ownerless_lane_takes_part_like_any_other() -> None:
    s.add([None, "a", "b"] * 3)
    rings, store = s.rings(), s.store()
    starts = [s.lanes(rings.claim(store, "default", 1))[0] for _ in range(9)]
    assert starts == ["", "a", "b"] * 3


@pytest.mark.row("queue", "C48")
@pytest.mark.django_db(transaction=True)
def test_a_later_queue_gets_only_the_slots_that_are_left(declare: Declare) -> None:
    seen: list[str] = []

    def note(payload: Any, ctx: JobContext) -> None:
        seen.append(ctx.queue)

    declare(s.KIND, note)
    s.add([None] * 5, queue="low")
    s.add([None] * 4, queue="high")
    with s.employed(("high", "low"), concurrency=3) as worker:
        counts = []
        for _ in range(4):
            assert worker.run_once() == 3 or len(seen) == 9
            counts.append((seen.count("high"), seen.count("low")))
    assert counts == [(3, 0), (4, 2), (4, 5), (4, 5)]


@pytest.mark.row("queue", "C49")
@pytest.mark.django_db
@pytest.mark.parametrize("n", [1, 2])
def test_a_new_worker_starts_at_the_lane_of_the_smallest_ready_id(n: int) -> None:
    s.add(["early"], queue="another")
    s.add(["m"], delay=60)
    s.add(["z", "a", "m", "z"])
    assert s.lanes(s.rings().claim(s.store(), "default", n)) == ["z", "a"][:n]
    # Once a worker and queue: later passes follow the ring.
    rings = s.rings()
    assert s.lanes(rings.claim(s.store(), "default", 1))[0] == {1: "a", 2: "m"}[n]
    s.add(["zz"])
    assert s.lanes(rings.claim(s.store(), "default", 1))[0] == {1: "m", 2: "z"}[n]


# kinds


@pytest.mark.row("queue", "C50")
@pytest.mark.django_db(transaction=True)
def test_a_job_of_an_unknown_kind_waits_for_an_upgraded_worker(declare: Declare) -> None:
    declare("claim.new")
    foreign = enqueue("claim.new")
    registry.forget("claim.new")
    own = enqueue(s.KIND)
    with s.employed() as worker:
        assert worker.run_until_idle() == 1
    assert s.states() == {foreign: "ready", own: "succeeded"}
    assert Job.objects.get(id=foreign).attempt == 0
    declare("claim.new")
    with s.employed() as upgraded:
        assert upgraded.run_until_idle() == 1
    assert s.states()[foreign] == "succeeded"


@pytest.mark.row("queue", "C50")
@pytest.mark.django_db
def test_foreign_jobs_in_front_of_a_lane_do_not_hide_what_is_behind_them() -> None:
    s.fill(500, kind="somebody.elses", lane="n % 50")
    own = s.add(["lane-7", "lane-7", "zz"])
    assert sorted(s.ids(s.rings().claim(s.store(), "default", 10))) == own
    assert Job.objects.filter(state="ready", attempt=0).count() == 500


@pytest.mark.row("queue", "C51")
@pytest.mark.django_db(transaction=True)
def test_a_worker_of_no_kinds_claims_nothing_and_asks_nothing() -> None:
    job = enqueue(s.KIND)
    with s.employed(kinds=[]) as worker:
        worker.run_once()
        seen = idle_statements(worker)
    assert s.states() == {job: "ready"}
    # Promote and reap serve other workers; no statement looks for a ready job.
    assert len(seen) == 2
    assert not [text for text in seen if "state='ready' AND queue" in text]


@pytest.mark.row("queue", "C51")
@pytest.mark.django_db
def test_a_worker_of_an_unregistered_kind_is_refused() -> None:
    with pytest.raises(UnknownKind, match=r"no handler registered for kind 'claim\.nobody'"):
        Worker(kinds=[s.KIND, "claim.nobody"])


@pytest.mark.row("queue", "C51")
@pytest.mark.django_db(transaction=True)
def test_a_worker_of_some_kinds_leaves_the_others(declare: Declare) -> None:
    declare("claim.other")
    other, own = enqueue("claim.other"), enqueue(s.KIND)
    with s.employed(kinds=[s.KIND]) as worker:
        assert worker.run_until_idle() == 1
    assert s.states() == {other: "ready", own: "succeeded"}


# what a claim writes


@pytest.mark.row("queue", "C66")
@pytest.mark.django_db
def test_a_claim_writes_token_lease_start_and_holder() -> None:
    (job,) = s.add(["a"])
    Job.objects.filter(id=job).update(progress={"done": 1, "total": 2, "message": ""})
    with s.later(0) as clock:
        row, token = s.claim_one(ttl=30.0, worker="w/host/1/abcdef", max_attempts=2)
        stored = Job.objects.get(id=job)
        clock.advance(timedelta(0))
    assert (row.id, row.attempt, row.max_attempts) == (job, 1, 2)
    assert (stored.state, stored.attempt, stored.max_attempts) == ("running", 1, 2)
    assert stored.claim_token == token
    assert len(token) == 32
    assert stored.started_at is not None
    assert stored.lease_expires_at == stored.started_at + timedelta(seconds=30)
    assert stored.worker == "w/host/1/abcdef"
    assert stored.progress is None


@pytest.mark.row("queue", "C51")
@pytest.mark.django_db
def test_the_rows_of_a_claim_carry_what_the_handler_needs() -> None:
    meta, slot = {"trace": "ä"}, None
    job = enqueue(s.KIND, {"a": ["ü", 1.5, None]}, org="Ö", priority=3, meta=meta)
    row, _ = s.claim_one()
    assert row.payload == '{"a":["ü",1.5,null]}'
    assert row.meta == '{"trace":"ä"}'
    assert (row.id, row.org, row.queue, row.kind) == (job, "Ö", "default", s.KIND)
    assert (row.priority, row.scheduled_for, row.run_id) == (3, slot, None)


@pytest.mark.django_db
def test_paused_lanes_are_walked_over_and_give_nothing() -> None:
    s.add(["a", "b", "c", "d"])
    store = s.store()
    taken = store.claim(s.request(2, paused=("a", "c")))
    assert ([row.org for row in taken.rows], taken.lanes) == (["b", "d"], 2)
    assert store.claim(s.request(5, paused=("a", "c"))).lanes == 0
