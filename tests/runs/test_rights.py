"""A right names a row of ours."""

from dataclasses import FrozenInstanceError

import pytest

from gnl_django.runs.rights import Right, lock_right


def test_a_runs_lock_is_a_right_to_the_running_run() -> None:
    assert lock_right(7, "token") == Right("gnl_django_run", 7, "lock_token", "token", "running")


def test_a_right_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        lock_right(7, "token").token = "other"  # type: ignore[misc]
