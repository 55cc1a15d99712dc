"""The rules by which an attempt's end becomes an outcome, without a database."""

import math
from typing import Any

import pytest

from gnl_django import InvalidPayload, PermanentFailure
from gnl_django.core.leases import Lease
from gnl_django.errors import ExecutionRevoked, PayloadIssue, RunBusy, StepInFlight
from gnl_django.queue import outcomes
from gnl_django.queue.outcomes import Undecodable
from gnl_django.queue.store.base import ClaimedRow, Outcome
from tests.conformance.conftest import Declare


def row_of(attempt: int = 1, max_attempts: int = 5) -> ClaimedRow:
    values: dict[str, Any] = dict.fromkeys(ClaimedRow._fields)
    return ClaimedRow(
        **{
            **values,
            "id": 7,
            "kind": "t.kind",
            "org": "",
            "queue": "default",
            "meta": "{}",
            "attempt": attempt,
            "max_attempts": max_attempts,
            "priority": 0,
        }
    )


def lease(why: Any = None) -> Lease:
    made = Lease(7, "token", good_at=0.0)
    if why is not None:
        made.signal.revoke(why)
    return made


@pytest.fixture
def fail(declare: Declare) -> Any:
    """Return the outcome of an attempt: `fail(error, attempt=2, why="timeout", retry_delay=5)`."""

    def outcome(
        error: BaseException,
        *,
        attempt: int = 1,
        max_attempts: int = 5,
        why: Any = None,
        retry_delay: Any = None,
    ) -> Outcome:
        kind = declare("t.kind", retry_delay=retry_delay)
        return outcomes.failure(row_of(attempt, max_attempts), lease(why), kind, error)

    return outcome


def test_a_success_stores_the_result() -> None:
    found = outcomes.success(row_of(), lease(), {"b": 1, "a": 2})
    assert found == Outcome(7, "token", "succeeded", result='{"a":2,"b":1}')
    assert outcomes.success(row_of(), lease(), None) == Outcome(7, "token", "succeeded")


@pytest.mark.parametrize("why", ["canceled"])
def test_a_success_after_a_cancellation_is_a_cancellation(why: Any) -> None:
    assert outcomes.success(row_of(), lease(why), "x") == outcomes.canceled(lease())


class Hostile(dict[str, int]):
    """A value whose own methods fail."""

    def __iter__(self) -> Any:
        raise RuntimeError("no")

    def items(self) -> Any:
        raise RuntimeError("no")


def test_a_result_that_cannot_be_looked_at_leaves_a_note() -> None:
    found = outcomes.success(row_of(), lease(), Hostile(a=1))
    assert (found.state, found.result) == ("succeeded", None)
    assert found.note == "result not stored: RuntimeError"


def test_a_result_that_holds_itself_leaves_a_note() -> None:
    ring: list[Any] = []
    ring.append(ring)
    found = outcomes.success(row_of(), lease(), ring)
    assert (found.state, found.result) == ("succeeded", None)
    assert "nested deeper" in found.note
    assert len(found.note) <= 255


def test_the_setting_bounds_the_result(settings: Any) -> None:
    settings.GNL = {"RESULT_MAX_BYTES": 4}
    assert outcomes.success(row_of(), lease(), "ab").result == '"ab"'
    found = outcomes.success(row_of(), lease(), "abc")
    assert (found.result, found.note) == (None, "result not stored: 5 bytes")


@pytest.mark.parametrize(
    ("attempt", "max_attempts", "state", "delay"),
    [
        (1, 5, "scheduled", 1.0),
        (4, 5, "scheduled", 8.0),
        (5, 5, "dead", 0.0),
        (6, 5, "dead", 0.0),
        (1, 1, "dead", 0.0),
        (10, 11, "scheduled", 300.0),
    ],
)
def test_a_failure_is_tried_again_until_the_attempts_are_spent(
    fail: Any, attempt: int, max_attempts: int, state: str, delay: float
) -> None:
    found = fail(ValueError("no"), attempt=attempt, max_attempts=max_attempts)
    assert (found.state, found.delay, found.recorded) == (state, delay, "failed")
    assert not found.refund
    assert (found.error_class, found.error) == ("builtins.ValueError", "ValueError: no")
    assert found.error_key
    assert found.traceback


def test_a_delay_of_nothing_makes_the_job_ready_at_once(fail: Any) -> None:
    assert (fail(ValueError(), retry_delay=0).state, fail(ValueError()).state) == (
        "ready",
        "scheduled",
    )


def test_the_delay_is_asked_with_the_attempt_and_the_exception(fail: Any) -> None:
    seen: list[Any] = []
    error = ValueError("no")
    fail(error, attempt=3, retry_delay=lambda *args: seen.append(args) or 5)
    assert seen == [(3, error)]
    fail(error, attempt=5, retry_delay=lambda *args: seen.append(args) or 5)
    assert len(seen) == 1  # the last attempt has no delay


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0, "5", None, True, 1e300])
def test_a_wrong_delay_gives_way_to_the_default(
    fail: Any, wrong: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert fail(ValueError("s3cret"), attempt=3, retry_delay=lambda *args: wrong).delay == 4.0
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize("attempt", [1, 5])
def test_a_permanent_failure_is_dead_whatever_attempt_it_is(fail: Any, attempt: int) -> None:
    found = fail(PermanentFailure("no"), attempt=attempt)
    assert (found.state, found.recorded) == ("dead", "failed")


def test_a_payload_that_does_not_decode_is_dead_as_invalid(fail: Any) -> None:
    cause = InvalidPayload("t.kind", [PayloadIssue("/a", "wrong")])
    found = fail(Undecodable(cause))
    assert (found.state, found.recorded) == ("dead", "invalid")
    assert found.error_class == "gnl_django.errors.InvalidPayload"
    assert found.error.startswith("InvalidPayload: ")


def test_an_invalid_payload_of_the_handlers_own_making_is_an_ordinary_failure(fail: Any) -> None:
    found = fail(InvalidPayload("other", [PayloadIssue("/a", "wrong")]))
    assert (found.state, found.recorded) == ("scheduled", "failed")


@pytest.mark.parametrize(
    "error",
    [ValueError("no"), PermanentFailure("no"), StepInFlight("x", 1.0, 60, 59.0), SystemExit()],
)
def test_whatever_ends_a_canceled_attempt_it_is_canceled_at_no_cost(
    fail: Any, error: BaseException
) -> None:
    found = fail(error, why="canceled")
    assert found == Outcome(7, "token", "canceled", refund=True, recorded="canceled")


def test_a_timeout_is_recorded_as_such_and_costs_the_attempt(fail: Any) -> None:
    found = fail(ExecutionRevoked("timeout"), why="timeout")
    assert (found.state, found.recorded, found.refund) == ("scheduled", "timeout", False)
    assert found.error_class == "gnl_django.errors.ExecutionRevoked"
    last = fail(ExecutionRevoked("timeout"), why="timeout", attempt=5)
    assert (last.state, last.recorded) == ("dead", "timeout")


@pytest.mark.parametrize(
    ("error", "delay"),
    [
        (StepInFlight("x", 1.0, 60, 0.5), 1.0),
        (RunBusy("x", retry_in=7.5), 7.5),
        (RunBusy("x", retry_in=0.2), 1.0),
        (RunBusy("x", retry_in=-3), 1.0),
        (RunBusy("x", retry_in=math.nan), 1.0),
        (RunBusy("x", retry_in=math.inf), 1.0),
        (RunBusy("x", retry_in="5"), 1.0),  # type: ignore[arg-type]
    ],
)
def test_a_deferral_waits_at_least_a_second_and_costs_nothing(
    fail: Any, error: BaseException, delay: float
) -> None:
    found = fail(error, attempt=5)
    assert (found.state, found.delay, found.refund) == ("scheduled", delay, True)
    assert found.deferred
    assert (found.recorded, found.error_class) == ("", "")


def test_a_deferral_after_a_timeout_is_a_timeout(fail: Any) -> None:
    found = fail(StepInFlight("x", 1.0, 60, 59.0), why="timeout")
    assert (found.recorded, found.refund) == ("timeout", False)


def test_a_release_gives_the_attempt_back() -> None:
    found = outcomes.released(lease())
    assert found == Outcome(7, "token", "ready", refund=True, recorded="released")


@pytest.mark.parametrize(
    ("outcome", "point"),
    [
        (Outcome(1, "t", "succeeded"), "complete"),
        (Outcome(1, "t", "scheduled", recorded="failed"), "retry"),
        (Outcome(1, "t", "ready", recorded="failed"), "retry"),
        (Outcome(1, "t", "scheduled", deferred=True), "retry"),
        (Outcome(1, "t", "dead", recorded="failed"), "bury"),
        (Outcome(1, "t", "canceled", recorded="canceled"), "cancel"),
        (Outcome(1, "t", "ready", recorded="released"), "release"),
    ],
)
def test_each_outcome_passes_the_fail_points_of_its_name(outcome: Outcome, point: str) -> None:
    assert outcome.point == point
