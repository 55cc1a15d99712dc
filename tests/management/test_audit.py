"""The audit line of a command names its user, also where the account has no name."""

import getpass
import logging
import os

import pytest

from gnl_django.management import audit


@pytest.mark.parametrize("error", [KeyError, OSError, ImportError])
def test_an_account_without_a_name_is_told_by_its_number(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def nameless() -> str:
        raise error("no entry")

    monkeypatch.setattr(getpass, "getuser", nameless)
    assert audit.user() == f"uid {os.getuid()}"


def test_a_line_without_details_is_whole(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "gnl_django.audit"):
        audit.note("prune")
    assert caplog.messages == [f"prune by {audit.user()!r} at the command line: -"]
