"""The errors: one family, each with what a caller needs to act on it, and words for people."""

import subprocess
import sys

import pytest

from gnl_django import errors
from gnl_django.errors import (
    Deferral,
    ExecutionRevoked,
    GnlError,
    InvalidPayload,
    PayloadIssue,
    QueueDepthExceeded,
    RunBusy,
    StepInFlight,
    UnknownKind,
)

FAMILY = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, BaseException)
]


@pytest.mark.parametrize("error", FAMILY, ids=lambda error: error.__name__)
def test_every_error_stands_below_the_base_and_says_what_it_is_for(error: type) -> None:
    assert issubclass(error, GnlError)
    assert issubclass(error, Exception)
    assert error.__doc__


@pytest.mark.parametrize(
    "name",
    [
        *("UnknownKind", "InvalidPayload", "QueueDepthExceeded", "PermanentFailure"),
        *("ExecutionRevoked", "StaleClaim", "LeaseExpired", "StepInFlight", "RunBusy"),
    ],
)
def test_the_errors_of_the_queue_exist(name: str) -> None:
    assert getattr(errors, name) in FAMILY


def test_no_error_of_ours_is_taken_for_a_wrong_argument_or_the_other_way_round() -> None:
    assert not issubclass(GnlError, (ValueError, TypeError, OSError))


def test_an_unknown_kind_names_itself_and_the_way_out() -> None:
    error = UnknownKind("mail.send")
    assert error.kind == "mail.send"
    assert "no handler registered" in str(error)
    assert "'mail.send'" in str(error)
    assert "background.py" in str(error)


def test_an_invalid_payload_lists_its_issues() -> None:
    issues = [PayloadIssue("/a/0", "wrong"), PayloadIssue("/", "worse")]
    error = InvalidPayload("mail.send", issues)
    assert (error.kind, error.issues) == ("mail.send", tuple(issues))
    assert str(error) == "payload of 'mail.send': /a/0: wrong; /: worse"


@pytest.mark.parametrize(("org", "shown"), [("acme", "'acme'"), (None, "ownerless")])
def test_a_full_lane_tells_its_numbers(org: str | None, shown: str) -> None:
    error = QueueDepthExceeded("mail.send", 3, 2, org)
    assert (error.kind, error.depth, error.max_depth, error.org) == ("mail.send", 3, 2, org)
    for part in ("mail.send", "3", "2", shown):
        assert part in str(error)


@pytest.mark.parametrize("why", ["canceled", "lease-lost", "timeout"])
def test_a_revocation_tells_why(why: str) -> None:
    assert ExecutionRevoked(why).why == why
    assert why in str(ExecutionRevoked(why))


@pytest.mark.parametrize(
    "error", [StepInFlight("pay", 1.26, 60, 58.74), RunBusy("import-7", retry_in=58.74)]
)
def test_a_deferral_tells_when_to_come_again(error: Deferral) -> None:
    assert isinstance(error, Deferral)
    assert error.retry_in == 58.74


def test_the_errors_need_nothing_of_django() -> None:
    code = (
        "import sys, gnl_django.errors; "
        "assert not any(name.split('.')[0] == 'django' for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
