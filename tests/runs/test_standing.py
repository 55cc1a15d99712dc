"""Leaving a run never raises over what the function did."""

import threading
from typing import Any

import pytest
from django.db import OperationalError

from gnl_django import RunContext, run_durable
from gnl_django.core.leases import Lease
from gnl_django.core.revocation import Revocation
from gnl_django.runs import standing
from gnl_django.runs.journal import acts
from gnl_django.runs.standing import Standing
from tests.conformance.conftest import FailPoint
from tests.conformance.support_runs import RUN, Body, make_run, run_row
from tests.support import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def broken(*args: Any, **kwargs: Any) -> Any:
    raise OperationalError("the database is gone")


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()], ids=repr)
def test_a_failure_that_cannot_be_written_does_not_hide_the_functions_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    monkeypatch.setattr(acts, "leave", broken)
    with pytest.raises(type(error)):
        run_durable(RUN, Body(error))
    assert f"Run {RUN} ends by its lock's ttl" in caplog.text
    assert (run_row().state, run_row().lock_token is None) == ("running", False)
    assert standing._hearts._beating == {}


def test_a_success_that_cannot_be_written_is_an_error_and_no_longer_renewed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(acts, "leave", broken)
    with pytest.raises(OperationalError):
        run_durable(RUN, Body(1))
    assert (run_row().state, standing._hearts._beating) == ("running", {})


def test_an_end_that_did_not_commit_is_written_by_the_next_entry(failpoint: FailPoint) -> None:
    failpoint("run.final", broken)
    body = Body(1)

    def work(run: RunContext) -> Any:
        return run.step("s", body)

    with pytest.raises(OperationalError):
        run_durable(RUN, work)
    assert run_row().state == "running"
    failpoint("run.final", lambda: None)
    run = run_row()
    run.lock_token = run.lock_holder = run.lock_expires_at = None
    run.save()
    assert run_durable(RUN, work) == 1
    assert (run_row().state, body.count) == ("completed", 1)


def make() -> Standing:
    return Standing(RUN, "default", org="", strict=True, text=None, signal=None, owner=None)


def test_what_was_never_entered_has_nothing_to_give_back() -> None:
    make().abandon()
    made = make()
    made.enter()
    made.abandon()
    made.abandon()
    assert (run_row().lock_token, standing._hearts._beating) == (None, {})


def test_a_lock_that_cannot_be_given_back_ends_by_itself(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = make()
    made.enter()
    monkeypatch.setattr(acts, "unlock", broken)
    made.abandon()
    assert "ends by its lock's ttl" in caplog.text
    assert standing._hearts._beating == {}


def test_a_completed_run_is_left_as_it_is() -> None:
    make_run(state="completed", finished_at="2031-05-07T12:00:00Z", note="result not stored")
    made = make()
    made.enter()
    assert not made.has_result
    assert made.returned((1,)) == [1]
    made.failed(ValueError())
    assert (run_row().state, run_row().note) == ("completed", "result not stored")


def test_hearts_are_counted() -> None:
    hearts = standing._Hearts()
    leases = [Lease(n, "0" * 32, good_at=0.0) for n in range(2)]
    for lease in leases:
        lease.good_at = float("inf")  # it is never late
        hearts.hold("default", lease)
    heart, count = hearts._beating["default"]
    assert (count, heart.held()) == (2, leases)
    hearts.drop("default", leases[0])
    assert hearts._beating["default"] == (heart, 1)
    hearts.drop("default", leases[1])
    assert hearts._beating == {}
    wait_until(lambda: not [t for t in threading.enumerate() if t.name.startswith("gnl-runs")], 30)


def test_runs_that_are_over_leave_nothing_on_the_signal_that_could_stop_them() -> None:
    signal = Revocation()
    run_durable(RUN, Body(1), signal=signal)
    run_durable(RUN, Body(2), signal=signal)  # completed: its result is given
    with pytest.raises(OSError, match="no"):
        run_durable("other", Body(OSError("no")), signal=signal)
    assert not signal._callbacks
