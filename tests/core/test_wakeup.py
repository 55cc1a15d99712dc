"""Wake-ups inside a process reach whoever subscribed, by channel and name."""

from collections.abc import Iterator

import pytest

from gnl_django.core import wakeup


class Sleeper:
    """Counts its wake-ups."""

    def __init__(self) -> None:
        self.times = 0

    def wake(self) -> None:
        self.times += 1


@pytest.fixture
def sleeper() -> Iterator[Sleeper]:
    made = Sleeper()
    yield made
    wakeup.unsubscribe(made.wake)


def test_a_wake_up_reaches_the_name_of_the_channel_only(sleeper: Sleeper) -> None:
    wakeup.subscribe("jobs", ["high", "low"], sleeper.wake)
    wakeup.wake("jobs", "high")
    wakeup.wake("jobs", "low")
    assert sleeper.times == 2
    wakeup.wake("jobs", "other")
    wakeup.wake("events", "high")
    assert sleeper.times == 2


def test_all_names_of_a_channel_can_be_woken(sleeper: Sleeper) -> None:
    wakeup.subscribe("jobs", ["high", "low"], sleeper.wake)
    wakeup.wake_all("jobs")
    assert sleeper.times == 2
    wakeup.wake_all("events")
    assert sleeper.times == 2


def test_after_unsubscribing_nothing_comes_and_others_still_are_woken(sleeper: Sleeper) -> None:
    other = Sleeper()
    wakeup.subscribe("jobs", ["high", "low"], sleeper.wake)
    wakeup.subscribe("jobs", ["high"], other.wake)
    wakeup.unsubscribe(sleeper.wake)
    wakeup.unsubscribe(sleeper.wake)
    wakeup.wake("jobs", "high")
    wakeup.wake("jobs", "low")
    assert (sleeper.times, other.times) == (0, 1)
    wakeup.unsubscribe(other.wake)
    assert not [key for key in wakeup._listeners if key[0] == "jobs"]


def test_whoever_is_woken_may_unsubscribe(sleeper: Sleeper) -> None:
    def once() -> None:
        sleeper.wake()
        wakeup.unsubscribe(once)

    wakeup.subscribe("jobs", ["high"], once)
    wakeup.wake("jobs", "high")
    wakeup.wake("jobs", "high")
    assert sleeper.times == 1
