"""Delays: the default doubles to its cap, a kind's own is taken as it is, nonsense is refused."""

import math
from datetime import timedelta
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnl_django.core.backoff import Growing, default_retry, retry_delay, seconds

attempts = st.integers(1, 32_767)
spans = st.floats(0, 3e9)
ERROR = ValueError("no")


def test_the_default_is_1_2_4_to_256_and_then_300_seconds() -> None:
    found = [default_retry(attempt) for attempt in range(1, 13)]
    assert found == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]


@given(attempts)
def test_the_default_never_falls_and_never_passes_300_seconds(attempt: int) -> None:
    assert 1 <= default_retry(attempt) <= default_retry(attempt + 1) <= 300


@given(st.none() | spans | st.lists(spans, min_size=1, max_size=5), attempts)
def test_a_delay_is_a_number_of_seconds_whatever_the_attempt(delay: Any, attempt: int) -> None:
    found = retry_delay(delay, attempt, ERROR)
    assert isinstance(found, float)
    assert math.isfinite(found)
    assert found >= 0


@given(st.lists(spans, min_size=1, max_size=5), attempts)
def test_of_a_sequence_the_last_element_repeats(delays: list[float], attempt: int) -> None:
    expected = delays[attempt - 1] if attempt <= len(delays) else delays[-1]
    assert retry_delay(delays, attempt, ERROR) == expected


def test_a_callable_is_given_the_attempt_and_the_exception() -> None:
    seen = []

    def delay(attempt: int, error: BaseException) -> timedelta:
        seen.append((attempt, error))
        return timedelta(seconds=attempt)

    assert retry_delay(delay, 3, ERROR) == 3.0
    assert seen == [(3, ERROR)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0.0),
        (5, 5.0),
        (0.25, 0.25),
        (timedelta(minutes=2, microseconds=1), 120.000001),
        (timedelta(0), 0.0),
    ],
)
def test_seconds_reads_numbers_and_timedeltas(value: Any, expected: float) -> None:
    found = seconds(value)
    assert (found, type(found)) == (expected, float)


@pytest.mark.parametrize(
    "value",
    [-1, -1e-9, math.nan, math.inf, -math.inf, timedelta(microseconds=-1), 1e10, timedelta.max],
)
def test_a_span_that_is_negative_or_endless_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        seconds(value)


@pytest.mark.parametrize("value", [None, "5", True, False, [5], 5j, Fraction(1, 2), b"5"])
def test_what_is_no_span_at_all_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="neither seconds nor a timedelta"):
        seconds(value)


@pytest.mark.parametrize("delay", [lambda attempt, error: "5", ["5"], [1, None]])
def test_a_delay_that_gives_no_span_is_refused_when_it_is_asked(delay: Any) -> None:
    with pytest.raises(TypeError):
        retry_delay(delay, 2, ERROR)


@given(st.floats(0.001, 10), st.floats(1, 100), st.integers(1, 40))
def test_a_growing_wait_doubles_to_its_cap(first: float, times: float, takes: int) -> None:
    longest = first * times
    growing = Growing(first, longest)
    found = [growing.take() for _ in range(takes)]
    assert found == [min(first * 2**at, longest) for at in range(takes)]
    growing.reset()
    assert growing.take() == first


def test_the_waits_of_an_idle_worker_are_those_of_the_specification() -> None:
    growing = Growing(0.2, 6.4)
    assert [growing.take() for _ in range(8)] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 6.4, 6.4]


def test_a_wait_whose_first_is_its_longest_stays_the_same() -> None:
    growing = Growing(0.5, 0.5)
    assert [growing.take() for _ in range(3)] == [0.5] * 3
