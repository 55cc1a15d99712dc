"""A process's presence: what happens at each heartbeat, and that nothing of it ever raises."""

import logging
from datetime import timedelta
from math import inf
from time import monotonic
from typing import Any

import pytest
from django.db import DatabaseError, OperationalError

from gnl_django import drain_worker, resume_worker
from gnl_django.core import clock, fleet, presence
from gnl_django.core.db import now
from gnl_django.core.fleet import Numbers
from gnl_django.core.models import Process
from gnl_django.core.presence import Presence
from tests.conformance import support_claim as s

pytestmark = pytest.mark.django_db(transaction=True)
NAME = "worker/host/1/abcdef"


class Someone:
    """A process with a presence and what it was told."""

    def __init__(self) -> None:
        self.draining = False
        self.told: list[str] = []
        self.beside = 0
        self.fails: Exception | None = None
        self.presence = Presence(
            "consumer", NAME, ["q"], self.numbers, self.obey, using="default", beside=self.count
        )

    def numbers(self) -> Numbers:
        return Numbers(draining=self.draining)

    def obey(self, command: str) -> None:
        self.told.append(command)
        self.draining = command == "drain"

    def count(self) -> None:
        if self.fails is not None:
            raise self.fails
        self.beside += 1


@pytest.fixture
def someone() -> Someone:
    return Someone()


def row() -> Process:
    return Process.objects.get()


def test_nothing_is_written_before_it_begins_and_after_it_ended(someone: Someone) -> None:
    assert someone.presence.due_at == inf
    someone.presence.end()
    assert not Process.objects.exists()
    someone.presence.begin()
    assert someone.presence.due_at <= monotonic()
    someone.presence.beat()
    assert monotonic() < someone.presence.due_at <= monotonic() + 5
    assert (row().name, row().role, row().queues) == (NAME, "consumer", ["q"])
    someone.presence.end()
    assert someone.presence.due_at == inf
    assert row().stopped_at is not None


def test_later_heartbeats_renew_the_row(someone: Someone) -> None:
    with clock.override(now("default")) as moment:
        someone.presence.beat()
        before = row()
        moment.advance(timedelta(seconds=5))
        someone.presence.beat()
        assert row().id == before.id
        assert row().seen_at == before.seen_at + timedelta(seconds=5)
    assert someone.beside == 2


def test_commands_are_obeyed_once_and_the_row_says_so_at_once(someone: Someone) -> None:
    someone.presence.beat()
    assert drain_worker(NAME)
    someone.presence.beat()
    assert (row().command, row().draining) == ("", True)
    someone.presence.beat()
    assert someone.told == ["drain"]
    assert resume_worker(NAME)
    someone.presence.beat()
    assert (row().command, row().draining) == ("", False)
    assert someone.told == ["drain", "resume"]


def test_a_command_of_61_seconds_is_cleared_and_not_obeyed(someone: Someone) -> None:
    someone.presence.beat()
    with clock.override(now("default")) as moment:
        drain_worker(NAME)
        moment.advance(timedelta(seconds=61))
        someone.presence.beat()
    assert someone.told == []
    assert (row().command, row().draining) == ("", False)


def test_a_row_that_was_deleted_is_entered_again(someone: Someone) -> None:
    someone.presence.beat()
    Process.objects.all().delete()
    someone.presence.beat()
    assert row().name == NAME


def test_a_heartbeat_that_fails_is_logged_once_and_the_next_one_tries_again(
    someone: Someone, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "gnl_django")
    someone.fails = DatabaseError("no answer\nDETAIL: long")
    for _ in range(3):
        someone.presence.beat()
    assert [record.getMessage() for record in caplog.records] == [
        f"The heartbeat of {NAME} failed: DatabaseError: no answer"
    ]
    someone.fails = None
    someone.presence.beat()
    someone.fails = DatabaseError("again")
    someone.presence.beat()
    assert len(caplog.records) == 2
    assert Process.objects.count() == 1

    def leave(*args: object) -> bool:
        raise DatabaseError("gone")

    monkeypatch.setattr(fleet, "leave", leave)
    someone.presence.end()
    assert caplog.messages[-1] == f"The end of {NAME} is not noted: DatabaseError: gone"
    assert row().stopped_at is None


def test_the_end_is_noted_though_the_connection_has_gone_since_the_last_heartbeat(
    someone: Someone, monkeypatch: pytest.MonkeyPatch
) -> None:
    someone.presence.beat()
    real, losses = fleet.leave, iter([True])

    def leave(*args: Any) -> bool:
        if next(losses, False):
            driver = type("OperationalError", (Exception,), {"__module__": "psycopg.errors"})
            raise OperationalError("the connection is lost") from driver("gone")
        return real(*args)

    monkeypatch.setattr(fleet, "leave", leave)
    someone.presence.end()
    assert row().stopped_at is not None


def test_a_held_row_is_tried_again_soon(someone: Someone, monkeypatch: pytest.MonkeyPatch) -> None:
    someone.presence.beat()
    monkeypatch.setattr(fleet, "beat", lambda *args: fleet.Answer(locked=True))
    someone.presence.beat()
    assert someone.presence.due_at <= monotonic() + presence.LOCKED_WAIT
    left = []
    monkeypatch.setattr(presence, "LEAVE_WAIT", 0.001)
    monkeypatch.setattr(fleet, "leave", lambda *args: bool(left.append(args)))
    someone.presence.end()
    assert len(left) == presence.LEAVE_TRIES


def test_old_rows_are_looked_for_at_the_first_heartbeat_and_then_once_an_hour(
    someone: Someone,
) -> None:
    with clock.override(now("default") - timedelta(hours=25)):
        fleet.enter("default", "old", "worker", [], Numbers())
    someone.presence.beat()
    assert row().name == NAME
    with s.statements() as seen:
        someone.presence.beat()
    assert not [text for text in seen if "stopped_at" in text]
