"""PgBouncer in transaction mode: nothing of ours counts on a session (R51; long: tests/chaos)."""

import logging
from typing import Any

import pytest
from django.db import connection, connections

from gnl_django.core import db, listener
from gnl_django.core.listener import Listener
from tests.anywhere.conftest import Travel
from tests.pgbouncer import PrivatePgBouncer
from tests.support import wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.postgres("PgBouncer is for PostgreSQL"),
    pytest.mark.row("queue", "C145"),
]


def changes(pooler: PrivatePgBouncer) -> dict[str, Any]:
    return {"PORT": str(pooler.port), "DISABLE_SERVER_SIDE_CURSORS": True}


def test_a_worker_and_a_project_work_behind_a_pooler(
    pooler: PrivatePgBouncer, travel: Travel
) -> None:
    worker = travel({"default": changes(pooler)})
    assert worker.output().count("LISTEN does not work here (a pooler") == 1


def test_a_connection_knows_whether_a_pooler_shares_its_session(
    pooler: PrivatePgBouncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not db.shares_sessions(connections["default"])
    monkeypatch.setitem(connection.settings_dict, "PORT", str(pooler.port))
    behind = connections["default"].copy()
    try:
        assert db.shares_sessions(behind)
    finally:
        behind.close()


def test_whoever_insists_on_notify_listens_behind_a_pooler_too(
    pooler: PrivatePgBouncer,
    monkeypatch: pytest.MonkeyPatch,
    settings: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings.GNL = {"NOTIFY": True}
    caplog.set_level(logging.INFO)
    listening: list[str] = []
    monkeypatch.setattr(listener, "listen", lambda wrapper, channel: listening.append(channel))
    connections.close_all()
    monkeypatch.setitem(connection.settings_dict, "PORT", str(pooler.port))
    ear = Listener("default", "gnl_jobs", lambda payload: None)
    ear.start()
    wait_until(lambda: listening == ["gnl_jobs"])
    ear.stop()
    connections.close_all()
    assert "LISTEN does not work" not in caplog.text


def test_what_is_notified_through_a_pooler_is_heard_by_whoever_listens_past_it(
    pooler: PrivatePgBouncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []

    def told(alias: str) -> bool:
        db.send_notification(alias, "gnl_jobs", alias)
        return alias in heard

    ear = Listener("default", "gnl_jobs", heard.append)
    ear.start()
    wait_until(lambda: told("default"), 20)  # it listens, past the pooler
    monkeypatch.setitem(connection.settings_dict, "PORT", str(pooler.port))
    connections["behind"] = connections["default"].copy("behind")
    try:
        wait_until(lambda: told("behind"), 20)
    finally:
        ear.stop()
        connections["behind"].close()
        del connections["behind"]
