"""The demo's progress: the counts, the rate and what is printed outside a terminal."""

import io
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from rich.console import Console

from gnl_django import enqueue
from testproject.demo.progress import Counts, Display, Rate, count
from testproject.demo.work import Run, enqueue_sources
from testproject.library.sources import Source

RUN = Run("run", 1, 10, 10, Counter(paper=10))


def test_waiting_jobs_are_those_in_no_final_state() -> None:
    counts = Counts({"scheduled": 1, "ready": 2, "running": 4, "succeeded": 8, "dead": 16})
    assert (counts.waiting, counts.finished) == (7, 24)


def test_canceled_jobs_are_finished() -> None:
    assert Counts({"canceled": 3}).finished == 3


def test_the_rate_is_taken_over_the_last_seconds() -> None:
    rate = Rate()
    assert rate.add(0.0, 0) == 0.0
    assert rate.add(2.0, 100) == 50.0
    for second in range(3, 12):
        last = rate.add(float(second), 100 + second)
    assert last == pytest.approx(1.0)


@pytest.mark.django_db
def test_only_the_runs_own_jobs_are_counted(
    django_assert_num_queries: Callable[[int], AbstractContextManager[object]],
) -> None:
    enqueue_sources([Source("paper", "/1")])
    run = enqueue_sources([Source("paper", "/1"), Source("glass", "/2")])
    enqueue("library.reindex", {"path": "/3", "package": "glass"})
    with django_assert_num_queries(1):
        assert count(run).states == {"ready": 2}


def test_outside_a_terminal_plain_lines_are_printed_and_no_news_is_none() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=False, width=200)
    with Display(console, RUN) as display:
        for counts in (Counts({"ready": 10}), Counts({"succeeded": 10}), Counts({"succeeded": 10})):
            display.show(counts)
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("0/10 finished, 0/s: scheduled=0 ready=10 running=0")
    assert lines[1].startswith("10/10 finished")
    assert len(lines) == 2


def test_in_a_terminal_the_state_of_all_jobs_is_on_the_screen() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    with Display(console, RUN, "Admin: here") as display:
        display.show(Counts({"ready": 7, "dead": 3}))
    text = out.getvalue()
    assert "3/10" in text
    assert "succeeded" in text
    assert "Admin: here" in text
