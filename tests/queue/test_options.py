"""The options of an enqueue: each checked by itself, and the row that they make."""

import hashlib
import math
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnl_django import NewJob, UnknownKind
from gnl_django.queue import options as opt
from tests.conformance.conftest import Declare

MIB = 1_048_576


@given(st.text(max_size=140))
def test_a_name_is_of_the_listed_characters_and_no_longer_than_its_column(text: str) -> None:
    good = re.fullmatch(r"[A-Za-z0-9_.:/-]{1,128}", text) is not None and "\n" not in text
    if good:
        assert opt.check_name("kind", text, 128) == text
    else:
        with pytest.raises(ValueError, match="kind"):
            opt.check_name("kind", text, 128)


@given(st.from_regex(r"[A-Za-z0-9_.:/-]{1,64}", fullmatch=True))
def test_every_name_of_the_listed_characters_passes(text: str) -> None:
    assert opt.check_name("queue", text, 64) == text


@given(st.text(max_size=140))
def test_an_org_is_printable_without_outer_spaces(text: str) -> None:
    if 1 <= len(text) <= 128 and text.isprintable() and text == text.strip(" "):
        assert opt.check_org(text) == text
    else:
        with pytest.raises(ValueError, match="org"):
            opt.check_org(text)


@given(st.text(max_size=300))
def test_a_key_is_printable_and_taken_as_it_is(text: str) -> None:
    reserved = text.startswith(("sched:", "wf:", "evt:", "job:"))
    if 1 <= len(text) <= 255 and text.isprintable() and not reserved:
        assert opt.check_key(text) == text
    else:
        with pytest.raises(ValueError, match="key"):
            opt.check_key(text)


def test_no_org_is_the_empty_one() -> None:
    assert opt.check_org(None) == ""


@pytest.mark.parametrize("value", [None, 5, b"a", True, ["a"]])
@pytest.mark.parametrize("what", ["name", "org", "key"])
def test_what_is_no_text_is_refused(what: str, value: Any) -> None:
    checks = {
        "name": lambda: opt.check_name("name", value, 9),
        "org": lambda: opt.check_org(value),
        "key": lambda: opt.check_key(value),
    }
    if (what, value) == ("org", None):
        return
    with pytest.raises(TypeError, match=what):
        checks[what]()


@given(st.integers(-200, 200))
def test_an_integer_keeps_within_its_bounds(number: int) -> None:
    if -100 <= number <= 100:
        assert opt.check_integer("priority", number, -100, 100) == number
    else:
        with pytest.raises(ValueError, match="priority"):
            opt.check_integer("priority", number, -100, 100)


@pytest.mark.parametrize("value", [True, False, 1.0, "1", None])
def test_what_is_no_integer_is_refused_and_a_bool_is_none(value: Any) -> None:
    with pytest.raises(TypeError, match="priority"):
        opt.check_integer("priority", value, -100, 100)


NOON = datetime(2031, 5, 7, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("run_at", "delay", "expected"),
    [
        (None, None, (None, 0.0)),
        (None, 0, (None, 0.0)),
        (None, 2.5, (None, 2.5)),
        (None, timedelta(minutes=1), (None, 60.0)),
        (NOON, None, (NOON, 0.0)),
        (NOON.astimezone(timezone(timedelta(hours=3))), None, (NOON, 0.0)),
    ],
)
def test_a_time_is_an_instant_or_a_span(run_at: Any, delay: Any, expected: Any) -> None:
    assert opt.check_time(run_at, delay) == expected


@pytest.mark.parametrize(
    ("run_at", "delay", "error", "word"),
    [
        (NOON, 0, ValueError, "one of them"),
        (NOON.replace(tzinfo=None), None, ValueError, "time zone"),
        ("2031-05-07", None, TypeError, "run_at"),
        (NOON.date(), None, TypeError, "run_at"),
        (5, None, TypeError, "run_at"),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=1))), None, ValueError, "run_at"),
        (None, -0.001, ValueError, "delay"),
        (None, math.nan, ValueError, "delay"),
        (None, 1e300, ValueError, "delay"),
        (None, "5", TypeError, "delay"),
        (None, True, TypeError, "delay"),
    ],
)
def test_a_wrong_time_is_refused_by_its_name(
    run_at: Any, delay: Any, error: type[Exception], word: str
) -> None:
    with pytest.raises(error, match=word):
        opt.check_time(run_at, delay)


def test_the_unique_form_of_a_key_is_a_hash_that_keeps_orgs_apart() -> None:
    assert opt.dedup("b", "kü") == hashlib.sha256("b\0kü".encode()).hexdigest()
    assert len({opt.dedup("", "ab"), opt.dedup("a", "b"), opt.dedup("ab", "c")}) == 3


def test_options_are_those_of_enqueue() -> None:
    found = opt.options_from({"key": "k", "max_depth": 3})
    assert (found.key, found.max_depth, found.org) == ("k", 3, None)
    with pytest.raises(TypeError, match="'colour'") as error:
        opt.options_from({"using": "x", "colour": 1, "org": "o"})
    assert "'using'" in str(error.value)
    assert "'org'" not in str(error.value)


def test_a_new_job_keeps_what_it_was_made_of() -> None:
    made = NewJob("a", {"x": 1}, key="k")
    assert (made.kind, made.payload, made.options.key) == ("a", {"x": 1}, "k")
    assert NewJob("a").payload is None


def row_of(job: NewJob) -> Any:
    (row,) = opt.build_rows([job], max_bytes=MIB)
    return row


def test_a_row_holds_the_kinds_defaults_and_the_calls_options(declare: Declare) -> None:
    kind = declare("t.kind", queue="low", priority=7, max_attempts=3, sensitive=True)
    row = row_of(NewJob(kind, {"b": 1, "a": 2}))
    assert (row.kind, row.queue, row.org, row.priority) == ("t.kind", "low", "", 7)
    assert (row.payload, row.meta, row.sensitive) == ('{"a":2,"b":1}', "{}", True)
    assert (row.key, row.dedup) == (None, None)
    assert (row.run_at, row.delay, row.max_attempts) == (None, 0.0, 3)
    given_row = row_of(
        NewJob("t.kind", None, queue="high", org="o", priority=0, key="k", meta={"m": 1}, delay=2)
    )
    assert (given_row.queue, given_row.org, given_row.priority) == ("high", "o", 0)
    assert (given_row.payload, given_row.meta) == (None, '{"m":1}')
    assert (given_row.key, given_row.dedup, given_row.delay) == ("k", opt.dedup("o", "k"), 2.0)


def test_jobs_that_share_their_options_differ_in_their_payload_only(declare: Declare) -> None:
    kind, other = declare("t.kind", priority=1), declare("t.other", priority=2)
    options = opt.options_from({"org": "o", "meta": {"m": 1}})
    jobs = [
        NewJob.with_options(kind, 1, options),
        NewJob.with_options(other, 2, options),
        NewJob.with_options(kind, 3, options),
        NewJob(kind, 4),
        NewJob(kind, 5, key="a"),
        NewJob(kind, 6, key="b"),
    ]
    rows = opt.build_rows(jobs, max_bytes=MIB)
    assert [(row.kind, row.payload, row.org, row.priority, row.key) for row in rows] == [
        ("t.kind", "1", "o", 1, None),
        ("t.other", "2", "o", 2, None),
        ("t.kind", "3", "o", 1, None),
        ("t.kind", "4", "", 1, None),
        ("t.kind", "5", "", 1, "a"),
        ("t.kind", "6", "", 1, "b"),
    ]
    assert rows == [row_of(job) for job in jobs]


def test_a_kind_is_found_by_name_or_by_itself(declare: Declare) -> None:
    kind = declare("t.kind")
    assert opt.resolve("t.kind") is opt.resolve(kind) is kind
    with pytest.raises(UnknownKind, match=r"t\.other"):
        opt.resolve("t.other")
    for nothing in (None, 5, object()):
        with pytest.raises(TypeError, match="kind"):
            opt.resolve(nothing)  # type: ignore[arg-type]
