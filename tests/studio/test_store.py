"""gnl_django.studio.store: one statement about the whole table, at a bounded price."""

from datetime import UTC, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from gnl_django.core import clock, db
from gnl_django.studio import store
from tests.studio.rows import EPOCH, make, new_job
from tests.studio.rows import store as store_rows


@pytest.mark.django_db
def test_a_snapshot_is_one_statement_with_the_databases_time_and_counts() -> None:
    for state, count in {"ready": 3, "running": 1, "dead": 2, "succeeded": 4}.items():
        for _ in range(count):
            make(state)

    with CaptureQueriesContext(
        connection,
    ) as captured:
        found = store.snapshot("default")

    assert len(captured) == 1
    assert found.counts == {"ready": 3, "scheduled": 0, "running": 1, "dead": 2}
    assert abs(found.now - db.now("default")) < timedelta(seconds=5)
    assert found.now.tzinfo is UTC
    assert [found.shown(state) for state in ("ready", "scheduled", "succeeded")] == ["3", "0", ""]


@pytest.mark.django_db
def test_a_snapshot_follows_the_clock_of_the_tests() -> None:
    with clock.override(EPOCH):
        assert store.snapshot("default").now == EPOCH


@pytest.mark.row("studio", "C7")
@pytest.mark.django_db
def test_counting_stops_above_a_thousand(monkeypatch: pytest.MonkeyPatch) -> None:
    store_rows([new_job("dead") for _ in range(1_000)])
    assert store.snapshot("default").shown("dead") == "1,000"

    store_rows([new_job("dead") for _ in range(250)])

    found = store.snapshot("default")
    assert found.counts["dead"] == 1_001
    assert found.shown("dead") == "1,000+"


@pytest.mark.parametrize(
    ("count", "limit", "text"),
    [(0, 1_000, "0"), (214, 1_000, "214"), (10_000, 10_000, "10,000"), (10_001, 10_000, "10,000+")],
)
def test_a_capped_count_says_that_there_are_more(count: int, limit: int, text: str) -> None:
    assert store.capped(count, limit) == text
