"""The cursor of a ring: where it starts, where it stands, when a pass is repeated (R14-R17)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import transaction

from gnl_django.models import Job
from gnl_django.queue.rings import PASSES_MAX, Rings
from gnl_django.queue.store.base import Claimed, ClaimRequest, Outcome, Settled
from tests.conformance import support_claim as s
from tests.conformance.conftest import Declare

LOCKS = "SQLite has one writer, nobody holds single rows"


class Recorder:
    """The store of this run's database; keeps what it was asked."""

    def __init__(self) -> None:
        self._store = s.store()
        self.asked: list[ClaimRequest] = []
        self.settled: list[Outcome] = []
        self.firsts = 0

    def first_lane(self, queue: str, kinds: Sequence[str]) -> str | None:
        self.firsts += 1
        return self._store.first_lane(queue, kinds)

    def claim(self, request: ClaimRequest) -> Claimed:
        self.asked.append(request)
        return self._store.claim(request)

    def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        self.settled += outcomes
        return self._store.settle(outcomes)

    def exchange(
        self, outcomes: Sequence[Outcome], request: ClaimRequest
    ) -> tuple[list[Settled], Claimed]:
        self.asked.append(request)
        self.settled += outcomes
        return self._store.exchange(outcomes, request)

    @property
    def cursors(self) -> list[tuple[str, bool]]:
        return [(request.cursor, request.at_cursor) for request in self.asked]


@pytest.fixture(autouse=True)
def _kind(declare: Declare) -> None:
    declare(s.KIND)


@pytest.fixture
def store(db: None) -> Any:
    return Recorder()


@contextmanager
def held(ids: Sequence[int]) -> Iterator[None]:
    """Hold rows in an open transaction of another connection."""
    gate = s.Gate()

    def hold() -> None:
        with transaction.atomic():
            list(Job.objects.select_for_update().filter(id__in=ids).order_by("id"))
            gate()

    with s.threads() as go:
        holding = go(hold)
        gate.wait_reached()
        try:
            yield
        finally:
            gate.open()
            holding.result()


def test_a_ring_starts_at_the_first_lane_and_then_behind_the_last_one_served(store: Any) -> None:
    s.add(["m", "a", "p", "z"])
    rings = s.rings()
    rings.claim(store, "default", 2)
    rings.claim(store, "default", 2)
    assert store.cursors == [("m", True), ("p", False)]
    assert store.firsts == 1


def test_each_queue_has_a_place_of_its_own(store: Any) -> None:
    s.add(["m", "p"], queue="high")
    s.add(["b", "c"], queue="low")
    rings = s.rings()
    for queue in ("high", "low", "high"):
        rings.claim(store, queue, 1)
    assert store.cursors == [("m", True), ("b", True), ("m", False)]
    assert [request.queue for request in store.asked] == ["high", "low", "high"]


def test_an_empty_queue_is_asked_for_its_first_lane_only(store: Any) -> None:
    taken = s.rings().claim(store, "default", 5)
    assert (taken.claimed.rows, taken.contended, store.asked) == ([], False, [])


def test_a_ring_that_has_run_dry_keeps_its_place(store: Any) -> None:
    s.add(["m"])
    rings = s.rings()
    rings.claim(store, "default", 5)
    taken = rings.claim(store, "default", 5)
    assert (taken.claimed.rows, taken.contended) == ([], False)
    s.add(["z", "a"])
    assert s.lanes(rings.claim(store, "default", 1)) == ["z"]
    assert store.firsts == 1


@pytest.mark.parametrize("waiting", [True, False])
def test_outcomes_are_settled_with_the_claim_or_without_one(store: Any, waiting: bool) -> None:
    s.add(["a"])
    row, token = s.claim_one()
    if waiting:
        s.add(["b"])
    taken = s.rings().claim(store, "default", 5, outcomes=[s.succeed(row, token)])
    assert [(answer.id, answer.state) for answer in taken.settled] == [(row.id, "succeeded")]
    assert len(taken.claimed.rows) == int(waiting)
    assert len(store.settled) == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.postgres(LOCKS)
@pytest.mark.mysql(LOCKS)
def test_a_crowded_ring_is_tried_again_behind_its_last_lane(transactional_db: None) -> None:
    store: Any = Recorder()
    (mine,) = s.add(["zz"])
    row, token = s.claim_one()
    ids = s.add(["m", "n", "o", "p", "q"])
    with held(ids[:4]):
        taken = s.rings().claim(store, "default", 2, outcomes=[s.succeed(row, token)])
    assert store.cursors == [("m", True), ("n", False), ("p", False)]
    assert s.ids(taken) == [ids[4]]
    assert taken.token == store.asked[-1].token
    assert not taken.contended
    # The outcomes went with the first try only.
    assert [answer.id for answer in taken.settled] == [mine]
    assert len(store.settled) == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.postgres(LOCKS)
@pytest.mark.mysql(LOCKS)
def test_a_ring_with_fewer_lanes_than_slots_was_seen_whole(transactional_db: None) -> None:
    store: Any = Recorder()
    with held(s.add(["a", "b"])):
        taken = s.rings().claim(store, "default", 3)
    assert len(store.asked) == 1
    assert (s.ids(taken), taken.contended) == ([], False)


@pytest.mark.django_db(transaction=True)
@pytest.mark.postgres(LOCKS)
@pytest.mark.mysql(LOCKS)
def test_after_16_passes_in_vain_the_ring_is_contended(transactional_db: None) -> None:
    store: Any = Recorder()
    with held(s.add(["a"])):
        taken = s.rings().claim(store, "default", 1)
    assert len(store.asked) == PASSES_MAX == 16
    assert taken.contended
    # Every try has a token of its own: (id, token) names one claim.
    assert len({request.token for request in store.asked}) == 16


def test_a_claim_asks_for_at_most_100_jobs_with_the_workers_values(store: Any) -> None:
    s.add(["a"] * 3)
    rings = Rings(lambda: (s.KIND,), ttl=30.0, worker="me", max_attempts=4)
    rings.claim(store, "default", 500, paused=("x",))
    (request,) = store.asked
    assert (request.n, request.ttl, request.worker) == (100, 30.0, "me")
    assert (request.max_attempts, request.kinds, request.paused) == (4, (s.KIND,), ("x",))


def test_kinds_are_asked_anew_for_each_pass(store: Any) -> None:
    s.add(["a"] * 2)
    names = [s.KIND]
    rings = Rings(lambda: tuple(names), ttl=30.0, worker="me", max_attempts=None)
    rings.claim(store, "default", 1)
    names.append("other.kind")
    rings.claim(store, "default", 1)
    assert [request.kinds for request in store.asked] == [(s.KIND,), (s.KIND, "other.kind")]
