"""Connections of ours notice a silent peer; all others stay as the project configured them."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, connections

from gnl_django.core import lifelines
from gnl_django.core.lifelines import impatient
from gnl_django.core.loop import PollLoop
from tests.support import vendor, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

LIMITS = {
    "postgresql": {"connect_timeout": "5", "tcp_user_timeout": "30000", "keepalives_idle": "10"},
    "mysql": {"connect_timeout": 5, "read_timeout": 30, "write_timeout": 30},
    "sqlite": {},
}


def elsewhere(work: Callable[[], Any]) -> Any:
    """Do something in a thread with connections of its own."""
    answers: list[Any] = []

    def run() -> None:
        try:
            answers.append(work())
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    return answers[0]


def chosen() -> dict[str, Any]:
    """Connect, and return what the driver was asked for."""
    connection.ensure_connection()
    if vendor() == "postgresql":
        return dict(connection.connection.info.get_parameters())
    return dict(connection.get_connection_params())


def test_a_connection_of_ours_has_limits_and_no_other_one_has() -> None:
    before = dict(connection.settings_dict["OPTIONS"])

    def connect() -> dict[str, Any]:
        impatient(connection)
        return chosen()

    ours, theirs = elsewhere(connect), elsewhere(chosen)
    for name, value in LIMITS[vendor()].items():
        assert ours[name] == value
        assert theirs.get(name) != value
    assert connection.settings_dict["OPTIONS"] == before
    assert connections.settings["default"]["OPTIONS"] == before


def test_what_the_project_has_set_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    copy: Any = connection.copy()
    copy.settings_dict["OPTIONS"]["connect_timeout"] = 77
    impatient(copy)
    assert copy.settings_dict["OPTIONS"]["connect_timeout"] == 77
    assert ("read_timeout" in copy.settings_dict["OPTIONS"]) == (vendor() == "mysql")


def test_a_pool_of_the_drivers_is_left_alone() -> None:
    copy: Any = connection.copy()
    copy.settings_dict["OPTIONS"]["pool"] = True
    before = dict(copy.settings_dict["OPTIONS"])
    impatient(copy)
    assert copy.settings_dict["OPTIONS"] == before


def test_a_driver_that_we_do_not_know_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    copy: Any = connection.copy()
    monkeypatch.setattr(lifelines, "_MYSQL_DRIVERS", set())
    before = dict(copy.settings_dict["OPTIONS"])
    impatient(copy)
    assert (copy.settings_dict["OPTIONS"] == before) == (vendor() != "postgresql")


def test_a_poll_loop_makes_its_own_connection_so() -> None:
    seen: list[dict[str, Any]] = []

    def step() -> float:
        seen.append(chosen())
        return 60.0

    loop = PollLoop(step, using="default", name="t", failed=lambda _: None, idle_wait=lambda: 60)
    loop.start()
    wait_until(lambda: seen)
    assert loop.stop(30)
    assert LIMITS[vendor()].items() <= seen[0].items()
