"""gnl_django.studio.sources: orders, cursors and the indexes behind the lists."""

from datetime import UTC, timedelta, timezone

import pytest

from gnl_django.core import paging
from gnl_django.models import Job
from gnl_django.studio import sources
from gnl_django.studio.filters import Filters
from gnl_django.studio.sources import Source, choose
from tests.studio.rows import EPOCH, make

DEAD = choose(Filters(state="dead"), few_ready=False)


@pytest.mark.parametrize(
    ("asked", "columns", "whole", "residual"),
    [
        (Filters(), ("id",), False, False),
        (Filters(org="acme"), ("id",), False, False),
        (Filters(kind="k"), ("id",), False, True),
        (Filters(queue="q", org="acme"), ("id",), False, True),
        (Filters(state="succeeded"), ("id",), False, True),
        (Filters(state="canceled", org="acme"), ("id",), False, True),
        (Filters(state="running", kind="k"), ("id",), True, False),
        (Filters(state="ready", kind="k"), ("id",), True, False),
        (Filters(state="dead"), ("finished_at", "id"), False, False),
        (Filters(state="dead", kind="k"), ("finished_at", "id"), False, True),
        (Filters(state="dead", org="acme"), ("finished_at", "id"), False, True),
        (Filters(state="scheduled"), ("run_at", "id"), False, False),
    ],
)
def test_each_list_has_a_source_that_an_index_gives(
    asked: Filters, columns: tuple[str, ...], whole: bool, residual: bool
) -> None:
    source = choose(asked, few_ready=True)

    assert (source.columns, source.whole, source.residual) == (columns, whole, residual)


def test_many_ready_jobs_are_read_in_windows_of_the_primary_key() -> None:
    assert choose(Filters(state="ready"), few_ready=False) == Source("jobs:ready", residual=True)


def test_a_cursor_holds_its_values_exactly() -> None:
    moment = (EPOCH + timedelta(microseconds=7)).astimezone(timezone(timedelta(hours=3)))

    values = DEAD.decode(DEAD.encode([moment, 42]))

    assert values == [moment, 42]
    assert values[0].tzinfo is UTC


@pytest.mark.row("studio", "C5")
@pytest.mark.row("security", "I5")
@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "zz",
        "W10",
        "€",
        "x" * 3_000,
        Source("jobs:all").encode([42]),
        Source("jobs:dead").encode([42]),
        paging.encode("jobs:dead", ["2026-11-01T00:00:00+00:00", "42"]),
        paging.encode("jobs:dead", ["2026-11-01T00:00:00+00:00", None]),
        paging.encode("jobs:dead", ["2026-11-01T00:00:00", 42]),
        paging.encode("jobs:dead", ["' OR 1=1 --", 42]),
        paging.encode("jobs:dead", ["2026-11-01T00:00:00+00:00", 2**63]),
    ],
)
def test_any_other_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        DEAD.decode(cursor)


@pytest.mark.row("studio", "C3")
@pytest.mark.django_db
@pytest.mark.parametrize("state", ["dead", "scheduled"])
@pytest.mark.parametrize("backward", [False, True])
def test_rows_with_equal_times_come_each_once_in_both_directions(
    state: str, backward: bool
) -> None:
    column = {"dead": "finished_at", "scheduled": "run_at"}[state]
    for at in range(12):
        make(state, **{column: EPOCH + timedelta(seconds=at // 5)})
    source = choose(Filters(state=state), few_ready=False)
    rows = Job.objects.filter(state=state)
    whole = list(source.ordered(rows, backward=backward))

    found: list[Job] = []
    while len(found) < 12:
        reach = rows
        if found:
            last = [getattr(found[-1], name) for name in source.columns]
            reach = rows.filter(source.beyond(last, backward=backward))
        page = list(source.ordered(reach, backward=backward)[:5])
        assert page
        found += page

    assert found == whole


@pytest.mark.django_db
def test_up_to_is_the_other_side_of_beyond() -> None:
    jobs = [make("dead", finished_at=EPOCH + timedelta(seconds=at // 2)) for at in range(6)]
    rows = Job.objects.filter(state="dead")
    for backward in (False, True):
        for job in jobs:
            values = [job.finished_at, job.pk]
            after = set(rows.filter(DEAD.beyond(values, backward=backward)))
            until = set(rows.filter(DEAD.up_to(values, backward=backward)))
            assert after | until == set(jobs)
            assert not after & until
            assert job in until


def test_a_window_is_twenty_thousand_entries() -> None:
    assert sources.WINDOW == 20_000
