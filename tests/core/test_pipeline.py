"""Statements in one round trip: one transaction, values of all sorts, plans and their loss.

Wherever something goes wrong half way, nobody may read an answer meant for somebody else.
"""

import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from django.db import connection

from gnl_django.core import pipeline
from gnl_django.models import QueueState

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.postgres("pipelines are PostgreSQL's"),
]

ADD = (
    "INSERT INTO gnl_django_queuestate (queue, org, paused_by, pause_reason, changed_at) "
    "VALUES (%(queue)s, '', '', '', now()) RETURNING queue"
)
PREPARED = "SELECT name FROM pg_prepared_statements WHERE name LIKE 'gnl%%'"


@pytest.fixture
def raw() -> Iterator[Any]:
    """A connection of the test's own, which it may break."""
    wrapper: Any = connection.copy()
    wrapper.connect()
    yield wrapper.connection
    wrapper.close()


@pytest.fixture(autouse=True)
def sound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test turn prepared statements off for the others."""
    monkeypatch.setattr(pipeline, "_preparing", True)


@pytest.mark.parametrize("prepare", [True, False])
def test_each_statement_brings_its_rows_and_every_sort_of_value_arrives(
    raw: Any, prepare: bool
) -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    values = {"text": "ü\"'\\", "int": -5, "half": 0.5, "yes": True, "at": moment, "none": None}
    text = (
        "SELECT %(text)s::text, %(int)s::bigint, %(half)s::float8, %(yes)s::bool, "
        "%(at)s::timestamptz = %(at)s::timestamptz, %(none)s::text, 7 %% 4"
    )
    for _ in range(2):
        answers = pipeline.run(raw, [("SELECT 1", {}), (text, values)], prepare=prepare)
        assert answers == [[(1,)], [("ü\"'\\", -5, 0.5, True, True, None, 3)]]
    with pytest.raises(TypeError, match="takes no list"):
        pipeline.run(raw, [("SELECT %(x)s", {"x": []})], prepare=prepare)
    assert raw.closed  # half a pipeline was sent


@pytest.mark.parametrize("prepare", [True, False])
def test_the_first_error_undoes_all_and_leaves_the_connection_usable(
    raw: Any, prepare: bool
) -> None:
    statements: list[pipeline.Statement] = [
        (ADD, {"queue": "a"}),
        ("SELECT 1 / %(zero)s::int", {"zero": 0}),
        (ADD, {"queue": "b"}),
    ]
    for _ in range(2):
        with pytest.raises(psycopg.errors.DivisionByZero):
            pipeline.run(raw, statements, prepare=prepare)
        assert not QueueState.objects.exists()
    assert pipeline.run(raw, statements[:1], prepare=prepare) == [[("a",)]]
    assert QueueState.objects.get().queue == "a"


def test_a_plan_has_a_name_of_its_text_and_is_made_anew_after_a_second_and_some_uses(
    raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = 1_000.0
    monkeypatch.setattr(pipeline, "monotonic", lambda: moment)
    monkeypatch.setattr(pipeline, "PLAN_USES", 3)
    plans: set[tuple[str, datetime]] = set()

    def plans_after(later: float) -> int:
        nonlocal moment
        moment += later
        pipeline.run(raw, [("SELECT 1", {})], prepare=True)
        (plan,) = raw.execute("SELECT name, prepare_time FROM pg_prepared_statements").fetchall()
        plans.add(plan)
        assert len({name for name, _ in plans}) == 1
        return len(plans)

    assert plans_after(0) == 1
    assert plans_after(0.5) == 1
    assert plans_after(0.4) == 1  # used often, but young
    assert plans_after(0.2) == 2
    assert plans_after(30.0) == 2  # old, but hardly used
    assert plans_after(31.0) == 3


def test_where_plans_get_lost_they_are_given_up_with_one_line(
    raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    pipeline.run(raw, [("SELECT 1", {})], prepare=True)
    raw.execute("DEALLOCATE ALL")  # as if the next transaction came to another server session
    for _ in range(2):
        assert pipeline.run(raw, [("SELECT 1", {})], prepare=True) == [[(1,)]]
    assert [record.getMessage()[:27] for record in caplog.records] == [
        "Prepared statements are off"
    ]
    assert raw.execute(PREPARED).fetchall() == []


def test_an_older_libpq_forgets_a_plan_by_a_statement(
    raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline.capabilities, "has_send_close_prepared", lambda: False)
    monkeypatch.setattr(pipeline, "PLAN_AGE_MAX", 0.0)
    for _ in range(2):
        assert pipeline.run(raw, [("SELECT 1", {})], prepare=True) == [[(1,)]]
    assert len(raw.execute(PREPARED).fetchall()) == 1


def test_a_lost_connection_is_an_error_and_never_an_endless_wait(raw: Any) -> None:
    pid = raw.info.backend_pid
    statements: list[pipeline.Statement] = [
        ("SELECT 1", {}),
        (f"SELECT pg_terminate_backend({pid})", {}),
        ("SELECT pg_sleep(60)::text", {}),
    ]
    with pytest.raises(psycopg.OperationalError):
        pipeline.run(raw, statements, prepare=False)
    with pytest.raises(psycopg.OperationalError):
        pipeline.run(raw, [("SELECT 1", {})], prepare=False)


def test_more_than_the_socket_takes_at_once_is_sent_and_read_in_turns(raw: Any) -> None:
    text = "x" * 2_000_000
    statements: list[pipeline.Statement] = [("SELECT %(text)s::text", {"text": text})] * 8
    assert pipeline.run(raw, statements, prepare=False) == [[(text,)]] * 8


def test_without_poll_select_waits(raw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(pipeline.select, "poll")
    text = "x" * 2_000_000
    statements: list[pipeline.Statement] = [("SELECT %(text)s::text", {"text": text})] * 4
    assert pipeline.run(raw, statements, prepare=False) == [[(text,)]] * 4
