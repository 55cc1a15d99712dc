"""The database's clock: real unless a test sets it, and then the same for all statements."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from django.db import transaction

from gnl_django.core import clock
from gnl_django.core.db import now
from gnl_django.queue.store import store_for
from tests.support import vendor

NOON = datetime(2031, 5, 7, 12, 0, 0, 123_456, tzinfo=UTC)
VENDORS = ("postgresql", "mysql", "sqlite")


@pytest.mark.django_db
def test_now_is_aware_utc_near_this_machines_time_and_goes_on() -> None:
    first, second = now("default"), now("default")
    assert first.tzinfo is UTC
    assert timedelta(0) <= second - first < timedelta(seconds=60)
    # The servers of the tests do not live in UTC: an hour's difference would be theirs.
    assert abs(clock.wall() - first) < timedelta(minutes=10)


@pytest.mark.django_db(transaction=True)
def test_now_goes_on_inside_a_transaction() -> None:
    with transaction.atomic():
        first = now("default")
        deadline = clock.wall() + timedelta(seconds=10)
        while now("default") == first:
            assert clock.wall() < deadline


@pytest.mark.django_db
def test_an_override_is_the_present_to_the_microsecond() -> None:
    with clock.override(NOON):
        assert now("default") == NOON
    assert now("default") != NOON


@pytest.mark.django_db
def test_an_override_can_be_moved() -> None:
    with clock.override(NOON) as moved:
        moved.advance(timedelta(days=-3))
        assert now("default") == NOON - timedelta(days=3)
        moved.set(NOON)
        assert now("default") == NOON


@pytest.mark.django_db
def test_overrides_nest_and_end_with_an_exception_too() -> None:
    later = NOON + timedelta(days=1)
    with clock.override(NOON):
        with pytest.raises(ZeroDivisionError), clock.override(later):
            raise ZeroDivisionError
        assert now("default") == NOON


@pytest.mark.django_db
def test_an_override_in_another_zone_is_the_same_instant() -> None:
    with clock.override(NOON.astimezone(timezone(timedelta(hours=5, minutes=45)))):
        assert now("default") == NOON


def test_an_override_that_has_ended_cannot_be_advanced() -> None:
    with clock.override(NOON) as ended:
        pass
    with pytest.raises(RuntimeError):
        ended.advance(timedelta(1))


@pytest.mark.parametrize("vendor", VENDORS)
def test_the_words_for_now_are_put_wherever_a_text_asks_for_them(vendor: str) -> None:
    text = "a {now} b {now} c {base} {other} %(x)s"
    found = clock.render(text, vendor)
    assert "{now}" not in found
    assert "{base}" not in found
    assert "{other} %(x)s" in found
    with clock.override(NOON):
        fixed = clock.render(text, vendor)
    assert fixed.count("2031-05-07 12:00:00.123456") == 3
    assert clock.render(text, vendor) == found


def test_a_text_that_does_not_ask_stays_as_it_is() -> None:
    assert clock.render("SELECT '%%' || 1", "sqlite") == "SELECT '%%' || 1"


@pytest.mark.django_db
def test_a_time_counted_from_now_has_the_fraction_that_was_asked_for() -> None:
    instant = datetime(2031, 5, 7, 12, 0, 0, 125_000, tzinfo=UTC)
    store = store_for("default")
    if vendor() == "postgresql":
        text, param = "SELECT ({now} + %s * interval '1 second') AT TIME ZONE 'UTC'", 0.375
    else:
        text, param = f"SELECT {store.AFTER}", store.duration(0.375)  # type: ignore[attr-defined]
    with clock.override(instant), store.execute(text, [param]) as cursor:
        value = cursor.fetchone()[0]
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    assert moment.replace(tzinfo=UTC) == instant + timedelta(seconds=0.375)
