"""A scaled run is smaller everywhere, and nowhere so small that it says nothing."""

import pytest

from benchmarks.plan import DEFAULT, FULL, SECTIONS, BenchError
from benchmarks.sections import FUNCTIONS


def test_a_scaled_run_shrinks_counts_and_seconds_and_is_done_once() -> None:
    small = FULL.scaled(0.1)
    assert (small.drain, small.million, small.repeats) == (2_000, 100_000, 1)
    assert small.held_seconds == pytest.approx(18)
    assert (small.notified_gap, small.enqueuers) == (FULL.notified_gap, FULL.enqueuers)


def test_a_full_run_is_left_as_it_is() -> None:
    assert FULL.scaled(1.0) is FULL


def test_no_count_falls_below_three() -> None:
    assert FULL.scaled(0.001).quiet == 3


def test_a_scale_that_is_no_share_is_refused() -> None:
    with pytest.raises(BenchError, match="scale"):
        FULL.scaled(2)


def test_every_section_that_can_be_named_has_a_function() -> None:
    assert list(FUNCTIONS) == list(SECTIONS)
    assert set(DEFAULT) <= set(SECTIONS)
