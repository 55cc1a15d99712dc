"""LISTEN where it does not exist or does not work; its work is tested in test_wakeups."""

import logging
from typing import Any

import pytest

from gnl_django.core import listener
from gnl_django.core.db import send_notification
from gnl_django.core.listener import Listener
from tests.support import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.sqlite("without NOTIFY")
@pytest.mark.mysql("without NOTIFY")
def test_without_notify_nothing_is_started_and_nothing_sent(
    django_assert_num_queries: Any,
) -> None:
    heard: list[str] = []
    ear = Listener("default", "gnl_jobs", heard.append)
    with django_assert_num_queries(0):
        ear.start()
        listener.notify("default", "gnl_jobs", "default")
    ear.stop()
    assert not heard


@pytest.mark.postgres("only PostgreSQL has NOTIFY")
def test_a_listener_that_cannot_listen_says_so_once_and_is_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    def refused(*args: object) -> None:
        raise RuntimeError("no sessions here")

    monkeypatch.setattr(listener, "listen", refused)
    ear = Listener("default", "gnl_jobs", lambda payload: None)
    ear.start()
    wait_until(lambda: "LISTEN does not work here" in caplog.text)
    ear.stop()
    ear.stop()
    assert caplog.text.count("LISTEN does not work here") == 1


@pytest.mark.postgres("only PostgreSQL has NOTIFY")
def test_what_is_notified_is_heard_and_a_stopped_listener_hears_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener, "_notified", {})
    heard: list[str] = []
    ear = Listener("default", "gnl_jobs", heard.append)
    ear.start()

    def told() -> bool:
        listener.notify("default", "gnl_jobs", "some-queue")
        return "some-queue" in heard

    wait_until(told)
    ear.stop()
    count = len(heard)
    monkeypatch.setattr(listener, "_notified", {})
    listener.notify("default", "gnl_jobs", "some-queue")
    assert len(heard) == count


@pytest.mark.postgres("only PostgreSQL has NOTIFY")
def test_one_connection_hears_several_channels_each_for_itself() -> None:
    jobs: list[str] = []
    control: list[str] = []
    ear = Listener("default", "gnl_jobs", jobs.append, {listener.CONTROL: control.append})
    ear.start()

    def told() -> bool:
        send_notification("default", listener.CONTROL, "pause")
        return bool(control)

    wait_until(told)
    ear.stop()
    assert set(control) == {"pause"}
    assert not jobs
