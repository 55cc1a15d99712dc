"""The handler's signal: first reason kept, waits end, callbacks are called once."""

import threading

import pytest

from gnl_django.core.revocation import Revocation
from gnl_django.errors import ExecutionRevoked


def test_a_fresh_signal_is_not_revoked_and_stops_nobody() -> None:
    signal = Revocation()
    assert (signal.revoked, signal.why) == (False, None)
    signal.raise_if_revoked()
    assert signal.wait(0) is False


@pytest.mark.row("queue", "C84")
def test_the_first_reason_stays() -> None:
    signal = Revocation()
    assert signal.revoke("timeout") is True
    assert signal.revoke("canceled") is False
    assert (signal.revoked, signal.why) == (True, "timeout")
    with pytest.raises(ExecutionRevoked, match="execution revoked: timeout") as raised:
        signal.raise_if_revoked()
    assert raised.value.why == "timeout"


def test_a_wait_ends_when_the_signal_is_revoked() -> None:
    signal, waiting, answers = Revocation(), threading.Event(), []

    def wait() -> None:
        waiting.set()
        answers.append(signal.wait(30))

    threads = [threading.Thread(target=wait) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert waiting.wait(30)
    signal.revoke("lease-lost")
    for thread in threads:
        thread.join(30)
    assert answers == [True, True]
    assert signal.wait() is True  # at once when it is revoked already


def test_callbacks_are_called_once_from_the_revoking_thread() -> None:
    signal, called = Revocation(), []
    signal.on_revoke(lambda: called.append(threading.current_thread().name))
    signal.on_revoke(lambda: called.append("second"))
    thread = threading.Thread(target=lambda: signal.revoke("canceled"), name="revoker")
    thread.start()
    thread.join(30)
    signal.revoke("timeout")
    assert called == ["revoker", "second"]


def test_a_callback_given_after_the_fact_is_called_at_once() -> None:
    signal, called = Revocation(), []
    signal.revoke("canceled")
    signal.on_revoke(lambda: called.append(signal.why))
    assert called == ["canceled"]


def test_a_callback_that_raises_is_logged_and_the_next_one_is_called(
    caplog: pytest.LogCaptureFixture,
) -> None:
    signal, called = Revocation(), []
    signal.on_revoke(lambda: 1 / 0)
    signal.on_revoke(lambda: called.append(1))
    assert signal.revoke("canceled") is True
    signal.on_revoke(lambda: 1 / 0)
    assert called == [1]
    assert [record.message for record in caplog.records] == ["on_revoke callback failed"] * 2


def test_a_callback_may_ask_the_signal() -> None:
    signal, seen = Revocation(), []
    signal.on_revoke(lambda: seen.append((signal.why, signal.wait(0))))
    signal.revoke("lease-lost")
    assert seen == [("lease-lost", True)]


def test_a_callback_that_was_taken_back_is_not_called() -> None:
    signal, told = Revocation(), []

    def kept() -> None:
        told.append("kept")

    def taken_back() -> None:
        told.append("taken back")

    signal.forget(taken_back)  # nothing is there yet
    signal.on_revoke(taken_back)
    signal.on_revoke(kept)
    signal.forget(taken_back)
    signal.revoke("canceled")
    signal.forget(kept)
    assert told == ["kept"]
