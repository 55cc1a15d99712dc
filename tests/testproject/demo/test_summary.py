"""The demo's summary: its arithmetic, what it reads, and what it prints."""

import io
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console

from gnl_django import Worker
from testproject.demo.progress import Counts
from testproject.demo.summary import collect, lost, per_second, show, since
from testproject.demo.work import enqueue_sources
from testproject.library.models import Document
from testproject.library.sources import Source

START = datetime(2030, 1, 1, tzinfo=UTC)


def test_jobs_per_second_is_jobs_by_seconds() -> None:
    assert per_second(30, 1.5) == 20.0


def test_no_time_makes_no_rate() -> None:
    assert per_second(3, 0.0) == 0.0


def test_seconds_since_the_start_need_both_ends() -> None:
    assert since(START, START + timedelta(seconds=1.25)) == 1.25
    assert since(START, None) is None
    assert since(None, START) is None


@pytest.mark.parametrize(
    ("states", "documents", "expected"),
    [
        ({"succeeded": 8, "dead": 2}, 8, 0),
        ({"succeeded": 8, "dead": 2}, 9, 0),  # a dead one's file was stored by an earlier run
        ({"succeeded": 8, "dead": 1}, 8, 1),  # a row has gone
        ({"succeeded": 8, "dead": 1, "running": 1}, 8, 1),
        ({"succeeded": 8, "dead": 2}, 6, 2),  # "succeeded" without its effect
        ({}, 0, 10),
    ],
)
def test_a_job_without_end_or_effect_is_lost(
    states: dict[str, int], documents: int, expected: int
) -> None:
    assert lost(10, Counts(states), documents) == expected


@pytest.fixture
def sources(tmp_path: Path) -> list[Source]:
    """Return 12 files of `big`, one broken among them, and one of `small`."""
    found = []
    for number in range(13):
        path = tmp_path / f"{number:02}.py"
        path.write_text("x = = 1\n" if number == 3 else "x = 1\n")
        found.append(Source("small" if number == 12 else "big", str(path)))
    return found


@pytest.mark.django_db(transaction=True)
def test_the_summary_of_a_run_says_what_became_of_each_job(sources: list[Source]) -> None:
    run = enqueue_sources(sources)
    worker = Worker(poll=0.05, max_attempts=1)
    worker.run_until_idle()
    summary = collect(run, [source.path for source in sources])
    assert summary.counts.states == {"succeeded": 12, "dead": 1}
    assert (summary.jobs, summary.documents, summary.lost) == (13, 12, 0)
    assert summary.seconds > 0
    assert summary.per_second == pytest.approx(13 / summary.seconds)
    (group,) = summary.dead
    assert (group.error_class, group.jobs) == ("builtins.SyntaxError", 1)
    assert group.path.endswith("03.py")
    assert "invalid syntax" in group.error
    big, small = summary.orgs
    assert (big.org, big.jobs, small.org, small.jobs) == ("big", 12, "small", 1)
    assert big.tenth is not None
    assert big.last is not None
    assert 0 < big.tenth <= big.last <= summary.seconds
    assert small.tenth is None
    assert small.last is not None


@pytest.mark.django_db(transaction=True)
def test_a_succeeded_job_whose_document_has_gone_is_lost(sources: list[Source]) -> None:
    run = enqueue_sources(sources)
    Worker(poll=0.05, max_attempts=1).run_until_idle()
    Document.objects.filter(path=sources[0].path).delete()
    assert collect(run, [source.path for source in sources]).lost == 1


@pytest.mark.django_db
def test_a_run_that_nobody_has_served_has_a_summary_too(sources: list[Source]) -> None:
    run = enqueue_sources(sources)
    summary = collect(run, [source.path for source in sources])
    assert (summary.lost, summary.seconds, summary.per_second, summary.dead) == (13, 0.0, 0.0, [])
    assert [(times.org, times.tenth, times.last) for times in summary.orgs] == [
        ("big", None, None),
        ("small", None, None),
    ]


@pytest.mark.django_db(transaction=True)
def test_the_printed_summary_names_error_example_and_organizations(sources: list[Source]) -> None:
    run = enqueue_sources(sources)
    Worker(poll=0.05, max_attempts=1).run_until_idle()
    out = io.StringIO()
    console = Console(file=out, force_terminal=False, width=250)
    show(console, collect(run, [source.path for source in sources]))
    text = out.getvalue()
    for part in ("jobs per second", "builtins.SyntaxError", "03.py", "big", "10th job finished"):
        assert part in text
