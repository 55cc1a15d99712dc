"""Rows of running processes: heartbeats, commands, states, retention."""

import os
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from gnl_django import __version__, drain_worker, resume_worker
from gnl_django.core import clock, fleet
from gnl_django.core.db import now
from gnl_django.core.fleet import Answer, Numbers, State
from gnl_django.core.models import Process
from tests.conformance import support_claim as s
from tests.conformance.conftest import NOON
from tests.support import vendor

NAME = "worker/host/1/abcdef"
FULL = Numbers(
    kinds=("z", "a", "é"),
    concurrency=10,
    active=3,
    stuck=1,
    draining=True,
    claimed=2**40,
    completed=7,
    failed=2,
    rss_kib=51_200,
    last_error="OperationalError: " + "x" * 300,
    oldest_age=90.5,
    pass_age=0.25,
    error_age=3_600.0,
)


@pytest.fixture
def frozen() -> Iterator[clock.Override]:
    """Stop the database's clock at NOON, for all statements of this process."""
    with clock.override(NOON) as moment:
        yield moment


def enter(name: str = NAME, role: str = "worker", numbers: Numbers = Numbers()) -> int:  # noqa: B008
    return fleet.enter("default", name, role, ["low", "high"], numbers)


def row(name: str = NAME) -> Process:
    return Process.objects.get(name=name)


def state(name: str = NAME) -> State:
    return fleet.state_of(row(name), now("default"))


# the row


@pytest.mark.django_db(transaction=True)
def test_a_process_enters_who_and_where_it_is(frozen: clock.Override, settings: Any) -> None:
    settings.GNL = {"RELEASE": "v" * 70}
    process_id = enter(numbers=Numbers(kinds=["b", "a"], concurrency=4))
    found = row()
    assert found.id == process_id
    assert (found.role, found.host, found.pid) == ("worker", socket.gethostname(), os.getpid())
    assert (found.version, found.release) == (__version__, "v" * 64)
    assert (found.queues, found.kinds, found.concurrency) == (["low", "high"], ["a", "b"], 4)
    assert (found.started_at, found.seen_at, found.stopped_at) == (NOON, NOON, None)
    assert (found.oldest_started_at, found.last_pass_at, found.last_error_at) == (None, None, None)
    assert (found.command, found.command_by, found.command_at) == ("", "", None)


@pytest.mark.django_db(transaction=True)
def test_entering_again_after_a_lost_answer_finds_the_row() -> None:
    assert enter() == enter()
    assert Process.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_heartbeat_writes_the_numbers_with_times_by_the_databases_clock(
    frozen: clock.Override,
) -> None:
    process_id = enter()
    frozen.advance(timedelta(seconds=5))
    assert fleet.beat("default", process_id, FULL) == Answer()
    found = row()
    at = NOON + timedelta(seconds=5)
    assert (found.started_at, found.seen_at) == (NOON, at)
    assert found.oldest_started_at == at - timedelta(seconds=90.5)
    assert found.last_pass_at == at - timedelta(seconds=0.25)
    assert found.last_error_at == at - timedelta(hours=1)
    assert found.last_error == FULL.last_error[:255]
    assert (found.kinds, found.concurrency) == (["a", "z", "é"], 10)
    assert (found.active, found.stuck, found.draining) == (3, 1, True)
    assert (found.claimed, found.completed, found.failed) == (2**40, 7, 2)
    assert found.rss_kib == 51_200
    fleet.beat("default", process_id, Numbers())
    found = row()
    assert (found.oldest_started_at, found.rss_kib, found.last_error) == (None, None, "")


@pytest.mark.django_db(transaction=True)
def test_a_heartbeat_is_one_statement_by_primary_key() -> None:
    process_id = enter()
    fleet.beat("default", process_id, FULL)  # asks once a connection how strict it is
    with s.statements() as seen:
        fleet.beat("default", process_id, FULL)
    # MySQL has no RETURNING: a locking read first, so that it never waits for the row.
    assert len(seen) == (2 if vendor() == "mysql" else 1), seen


@pytest.mark.django_db(transaction=True)
def test_a_heartbeat_without_a_row_says_so() -> None:
    assert fleet.beat("default", 5, FULL) == Answer(gone=True)
    assert not Process.objects.exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.postgres("SQLite locks no rows")
@pytest.mark.mysql("SQLite locks no rows")
def test_a_heartbeat_does_not_wait_for_a_row_that_somebody_holds() -> None:
    process_id = enter()
    before = row().seen_at
    with s.threads() as go:
        gate = s.Gate()

        def hold() -> None:
            with transaction.atomic():
                assert drain_worker(NAME)
                gate()

        holding = go(hold)
        gate.wait_reached()
        assert fleet.beat("default", process_id, FULL) == Answer(locked=True)
        assert fleet.leave("default", process_id, FULL) is False
        assert row().seen_at == before
        gate.open()
        holding.result()
    assert fleet.beat("default", process_id, FULL) == Answer("drain")


@pytest.mark.django_db(transaction=True)
def test_an_orderly_end_is_noted(frozen: clock.Override) -> None:
    process_id = enter()
    frozen.advance(timedelta(seconds=1))
    assert fleet.leave("default", process_id, Numbers(completed=9)) is True
    found = row()
    assert found.stopped_at == found.seen_at == NOON + timedelta(seconds=1)
    assert found.completed == 9
    assert state() is State.STOPPED


# what a process is


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("heartbeat", "seconds", "wanted"),
    [
        (5, 0, "alive"),
        (5, 15, "alive"),
        (5, 15.001, "late"),
        (1, 15.001, "late"),
        (5, 60, "late"),
        (5, 60.001, "lost"),
        (10, 30, "alive"),
        (10, 30.001, "late"),
        (10, 120, "late"),
        (10, 120.001, "lost"),
    ],
)
def test_the_state_follows_from_the_last_heartbeat(
    frozen: clock.Override, settings: Any, heartbeat: float, seconds: float, wanted: str
) -> None:
    settings.GNL = {"HEARTBEAT": heartbeat}
    enter()
    frozen.advance(timedelta(seconds=seconds))
    assert state() == wanted
    assert bool(fleet.living("default")) is (wanted != "lost")
    assert drain_worker(NAME) is (wanted != "lost")


@pytest.mark.django_db(transaction=True)
def test_the_living_are_those_of_a_role_by_name(frozen: clock.Override) -> None:
    enter("lost")
    frozen.advance(timedelta(seconds=61))
    enter("b")
    enter("a")
    enter("other", role="scheduler")
    fleet.leave("default", enter("stopped"), Numbers())
    assert [process.name for process in fleet.living("default")] == ["a", "b"]
    assert [process.name for process in fleet.living("default", role="scheduler")] == ["other"]


# commands


@pytest.mark.django_db(transaction=True)
def test_a_command_is_brought_back_by_the_heartbeat_until_it_is_cleared(
    frozen: clock.Override,
) -> None:
    process_id = enter()
    assert drain_worker(NAME, by="ana" + "x" * 200) is True
    found = row()
    assert (found.command, found.command_at) == ("drain", NOON)
    assert found.command_by == ("ana" + "x" * 200)[:150]
    for _ in range(2):
        answer = fleet.beat("default", process_id, Numbers())
        assert answer == Answer("drain")
    fleet.clear("default", process_id, answer, draining=True)
    found = row()
    assert (found.command, found.command_by, found.command_at) == ("", "", None)
    assert found.draining is True
    assert fleet.beat("default", process_id, Numbers()) == Answer()


@pytest.mark.django_db(transaction=True)
def test_a_command_older_than_a_minute_is_stale(frozen: clock.Override) -> None:
    process_id = enter()
    drain_worker(NAME)
    frozen.advance(timedelta(seconds=60))
    assert fleet.beat("default", process_id, Numbers()).stale is False
    frozen.advance(timedelta(milliseconds=1))
    answer = fleet.beat("default", process_id, Numbers())
    assert answer == Answer("drain", stale=True)
    drain_worker(NAME)  # again, before the old one is cleared
    fleet.clear("default", process_id, answer, draining=False)
    assert fleet.beat("default", process_id, Numbers()) == Answer("drain")


@pytest.mark.django_db(transaction=True)
def test_another_command_that_came_meanwhile_is_not_cleared() -> None:
    process_id = enter()
    drain_worker(NAME)
    answer = fleet.beat("default", process_id, Numbers())
    assert resume_worker(NAME, by="bob") is True
    fleet.clear("default", process_id, answer, draining=True)
    assert (row().command, row().command_by) == ("resume", "bob")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("act", [drain_worker, resume_worker])
def test_nobody_can_be_asked_who_is_unknown_or_stopped(act: Any) -> None:
    assert act("unknown") is False
    fleet.leave("default", enter(), Numbers())
    assert act(NAME) is False
    assert row().command == ""


# retention


@pytest.mark.django_db(transaction=True)
def test_rows_of_processes_that_ended_a_day_ago_are_deleted(frozen: clock.Override) -> None:
    enter("killed")
    fleet.leave("default", enter("stopped"), Numbers())
    frozen.advance(timedelta(hours=12))
    late = enter("stopped later")
    frozen.advance(timedelta(hours=12))
    fleet.leave("default", late, Numbers())
    enter("here")
    with s.statements() as seen:
        assert fleet.prune("default") == 0  # exactly 24 hours are kept
    assert len(seen) == 1
    frozen.advance(timedelta(milliseconds=1))
    assert fleet.prune("default") == 2
    assert set(Process.objects.values_list("name", flat=True)) == {"stopped later", "here"}
    assert not connection.in_atomic_block
