"""gnl_django.studio.formats: states, times and errors in words."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from gnl_django.models import Job
from gnl_django.studio import formats
from tests.studio.rows import EPOCH, new_job

NOW = EPOCH + timedelta(hours=2)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0 ms"),
        (0.35, "350 ms"),
        (12.9, "12 s"),
        (59.999, "59 s"),
        (60, "1 min"),
        (3_840, "1 h 04 min"),
        (93_600, "1 d 2 h"),
    ],
)
def test_a_length_of_time_is_told_in_at_most_two_units(seconds: float, text: str) -> None:
    assert formats.span(seconds) == text


@pytest.mark.parametrize(
    ("state", "fields", "text"),
    [
        ("ready", {"run_at": NOW - timedelta(minutes=12)}, "waits 12 min"),
        ("scheduled", {"run_at": NOW + timedelta(minutes=4)}, "due in 4 min"),
        ("scheduled", {"run_at": NOW + timedelta(seconds=9), "attempt": 2}, "retry in 9 s"),
        ("scheduled", {"run_at": NOW - timedelta(seconds=9)}, "due 9 s ago"),
        ("running", {"started_at": NOW - timedelta(seconds=3)}, "running for 3 s"),
        ("dead", {"finished_at": NOW - timedelta(hours=1)}, "died 1 h 00 min ago"),
        ("succeeded", {"finished_at": NOW - timedelta(seconds=2)}, "finished 2 s ago"),
        ("canceled", {"finished_at": NOW - timedelta(seconds=2)}, "canceled 2 s ago"),
    ],
)
def test_each_state_has_its_time(state: str, fields: dict[str, object], text: str) -> None:
    shown = formats.when(new_job(state, **fields), NOW)

    before, _, rest = shown.partition("<time ")
    assert before + rest.partition(">")[2].removesuffix("</time>") == text


def test_times_are_exact_and_in_utc_behind_their_words() -> None:
    east = timezone(timedelta(hours=5))
    moment = datetime(2026, 11, 30, 15, 59, 58, 250_000, tzinfo=east)

    assert formats.ago(moment, datetime(2026, 11, 30, 11, 3, 59, tzinfo=UTC)) == (
        '<time datetime="2026-11-30T10:59:58.250000Z" title="2026-11-30 10:59:58 UTC">'
        "4 min ago</time>"
    )


@pytest.mark.parametrize("state", Job._meta.get_field("state").flatchoices)
def test_each_state_is_a_glyph_and_a_word(state: tuple[str, str]) -> None:
    shown = formats.badge(state[0])

    assert shown.endswith(f" {state[1]}</span>")
    assert 'aria-hidden="true"' in shown


def test_a_state_that_nobody_knows_is_shown_as_text() -> None:
    assert "&lt;b&gt;" in formats.badge("<b>")


def test_the_first_line_that_says_something_stands_for_an_error() -> None:
    assert formats.first_line("\n  \nKeyError: 7\nmore") == "KeyError: 7"
    assert formats.first_line("") == ""
    assert formats.first_line("x" * 500) == "x" * 199 + "…"


def test_a_class_is_shown_by_its_last_name() -> None:
    assert formats.short_class("gnl_django.errors.LeaseExpired") == "LeaseExpired"
    assert formats.short_class("KeyError") == "KeyError"
