"""Columns that mean the same everywhere: names by code point, times in UTC."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import connection
from django.db.models import F, Max, Min
from django.db.utils import IntegrityError

from gnl_django.core.fields import NameField, UTCDateTimeField, to_database
from gnl_django.models import QueueState

pytestmark = pytest.mark.django_db

NOON = datetime(2031, 5, 7, 12, 0, 0, 123_456, tzinfo=UTC)
NAMES = [
    *("", "!", "0", "A", "B", "Z", "_", "a", "a b", "aa", "b", "z"),
    *("\u00c4", "\u00df", "\u00e4", "\u0130", "\u0131", "a\u0308", "\uffee", "\U0001f600"),
]


def queue_of(org: str, changed_at: datetime = NOON) -> QueueState:
    return QueueState.objects.create(queue="q", org=org, changed_at=changed_at)


def stored(moment: datetime) -> QueueState:
    return QueueState.objects.get(id=queue_of("x", moment).id)


def test_names_sort_by_code_point() -> None:
    for name in reversed(NAMES):
        queue_of(name)
    found = list(QueueState.objects.order_by("org").values_list("org", flat=True))
    assert found == sorted(NAMES)
    backwards = list(QueueState.objects.order_by("-org").values_list("org", flat=True))
    assert backwards == sorted(NAMES, reverse=True)


@pytest.mark.parametrize("name", ["A", "\u00c4", "a\u0308", "\u0131", "\u00df"])
def test_names_are_equal_only_to_themselves(name: str) -> None:
    for other in NAMES:
        queue_of(other)
    assert QueueState.objects.get(org=name).org == name
    assert QueueState.objects.filter(org__gt="A", org__lt="C").count() == 1


def test_names_that_differ_in_case_are_unique() -> None:
    queue_of("a")
    queue_of("A")
    with pytest.raises(IntegrityError):
        queue_of("a")


@pytest.mark.parametrize(
    "moment",
    [
        NOON,
        NOON.replace(microsecond=0),
        NOON.replace(microsecond=1),
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime(2026, 3, 29, 1, 30, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    ],
    ids=str,
)
def test_a_time_comes_back_as_it_went_in(moment: datetime) -> None:
    assert stored(moment).changed_at == moment
    assert stored_columns() == [moment]


def stored_columns() -> list[Any]:
    return list(QueueState.objects.values_list("changed_at", flat=True))


def test_a_time_of_another_zone_comes_back_in_utc() -> None:
    found = stored(NOON.astimezone(timezone(timedelta(hours=-9, minutes=-30)))).changed_at
    assert found == NOON
    assert found.tzinfo is UTC


def test_a_naive_time_is_taken_in_the_projects_zone(settings: Any) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    assert stored(datetime(2031, 5, 7, 21)).changed_at == datetime(2031, 5, 7, 12, tzinfo=UTC)  # noqa: DTZ001 - what is meant


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/St_Johns", "UTC"])
@pytest.mark.parametrize("use_tz", [True, False])
def test_the_projects_settings_play_no_part(settings: Any, use_tz: bool, zone: str) -> None:
    queue_of("before")
    connection.close()  # as in a process that starts with these settings
    settings.USE_TZ, settings.TIME_ZONE = use_tz, zone
    queue_of("after")
    rows = list(QueueState.objects.order_by("id"))
    assert [row.changed_at for row in rows] == [NOON, NOON]
    assert all(row.changed_at.tzinfo is UTC for row in rows)
    assert QueueState.objects.filter(changed_at=NOON).count() == 2
    assert QueueState.objects.filter(changed_at__gt=NOON).count() == 0
    extremes = QueueState.objects.aggregate(first=Min("changed_at"), last=Max("changed_at"))
    assert extremes == {"first": NOON, "last": NOON}
    QueueState.objects.filter(org="after").update(changed_at=F("changed_at"))
    assert QueueState.objects.filter(changed_at=NOON).count() == 2
    connection.close()


def test_times_sort_and_compare_to_the_microsecond() -> None:
    moments = [NOON + timedelta(microseconds=step) for step in (1, -1, 0, 876_544, -123_456)]
    for number, moment in enumerate(moments):
        queue_of(str(number), moment)
    assert list(
        QueueState.objects.order_by("changed_at").values_list("changed_at", flat=True)
    ) == sorted(moments)
    assert QueueState.objects.filter(changed_at__lte=NOON).count() == 3


def test_no_time_is_null() -> None:
    state = queue_of("x")
    assert QueueState.objects.get(paused_at__isnull=True).id == state.id
    assert QueueState.objects.get(id=state.id).paused_at is None


@pytest.mark.parametrize(
    ("for_vendor", "expected"),
    [
        ("postgresql", NOON),
        ("mysql", datetime(2031, 5, 7, 12, 0, 0, 123_456)),  # noqa: DTZ001 - DATETIME has no zone
        ("sqlite", "2031-05-07 12:00:00.123456"),
    ],
)
def test_a_parameter_has_the_form_of_its_driver(for_vendor: str, expected: object) -> None:
    assert to_database(NOON, for_vendor) == expected
    assert to_database(None, for_vendor) is None


def test_sqlites_text_always_has_six_fraction_digits() -> None:
    assert to_database(NOON.replace(microsecond=0), "sqlite") == "2031-05-07 12:00:00.000000"


def test_a_text_that_is_no_time_is_refused() -> None:
    with pytest.raises(ValidationError, match="yesterday"):
        queue_of("x", "yesterday")  # type: ignore[arg-type]


def test_a_name_field_keeps_its_kind_in_migrations() -> None:
    assert NameField(max_length=5).deconstruct()[1] == "gnl_django.core.fields.NameField"
    assert UTCDateTimeField().deconstruct()[1] == "gnl_django.core.fields.UTCDateTimeField"
