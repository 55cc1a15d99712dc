"""A worker's copy of the pauses, apart from any worker."""

from collections.abc import Callable

import pytest

from gnl_django import pause_queue, resume_queue
from gnl_django.core import wakeup
from gnl_django.queue import pauses
from gnl_django.queue.pauses import PauseMap
from tests.conformance import support_claim as s

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def paused() -> PauseMap:
    """Return a map of five paused rows."""
    for queue, org in [("mail", "b"), ("mail", "a"), ("*", "a"), ("*", "z"), ("slow", None)]:
        pause_queue(queue, org=org)
    return PauseMap("default")


def test_the_lanes_of_a_queue_are_its_own_and_those_paused_in_all_queues(paused: PauseMap) -> None:
    assert paused.lanes("mail") == ("a", "b", "z")
    assert paused.lanes("other") == ("a", "z")
    assert paused.lanes("slow") is None


def test_one_statement_answers_for_all_queues(paused: PauseMap) -> None:
    with s.statements() as seen:
        for queue in ("mail", "other", "slow"):
            paused.lanes(queue)
    assert len(seen) == 1


def test_without_pauses_no_lane_is_paused() -> None:
    assert PauseMap("default").lanes("mail") == ()


def test_a_copy_is_read_again_when_it_is_a_second_old_when_told_and_after_a_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [5.0]
    monkeypatch.setattr(pauses, "monotonic", lambda: now[0])
    copy = PauseMap("default")

    def reads(act: Callable[[], object]) -> int:
        act()
        with s.statements() as seen:
            copy.lanes("mail")
            copy.refresh()
        return len(seen)

    assert reads(lambda: None) == 1
    assert reads(lambda: None) == 0
    now[0] = 5.99
    assert reads(lambda: None) == 0
    now[0] = 6.0
    assert reads(lambda: None) == 1
    assert reads(copy.expire) == 1
    assert reads(lambda: pause_queue("mail")) == 1
    assert reads(lambda: pause_queue("mail")) == 0  # nothing has changed
    assert reads(lambda: resume_queue("mail")) == 1


def test_loops_are_told_of_a_pause_and_of_its_end_after_the_commit() -> None:
    told: list[str] = []

    def tell() -> None:
        told.append("news")

    wakeup.subscribe(pauses.CHANNEL, [pauses.NEWS], tell)
    try:
        pause_queue("mail")
        pause_queue("mail")
        resume_queue("mail", by="ana")
        resume_queue("mail", by="ana")
    finally:
        wakeup.unsubscribe(tell)
    assert told == ["news", "news"]


def test_entering_known_queues_is_one_read() -> None:
    pauses.enlist("default", ("a", "b"))
    with s.statements() as seen:
        pauses.enlist("default", ("b", "a"))
    assert len(seen) == 1
