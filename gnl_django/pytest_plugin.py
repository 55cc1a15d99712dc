"""Fixtures of `gnl_django.testing` for pytest with pytest-django.

In the conftest.py of your project: `pytest_plugins = ["gnl_django.pytest_plugin"]`.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from gnl_django.core.clock import Override


class Jobs:
    """The functions of `gnl_django.testing` under short names."""

    def __init__(self) -> None:
        # Not at import: a plugin is read before Django is set up.
        from gnl_django import testing

        self.run = testing.run_jobs
        self.enqueued = testing.enqueued_jobs
        self.assert_enqueued = testing.assert_enqueued
        self.assert_not_enqueued = testing.assert_not_enqueued


@pytest.fixture
def gnl_jobs(db: Any) -> Jobs:
    """Run jobs and see what was enqueued: `gnl_jobs.run()`, `gnl_jobs.assert_enqueued(kind)`.

    In a test's own transaction; mark it `django_db(transaction=True)` for real commits.
    """
    return Jobs()


@pytest.fixture
def gnl_clock(db: Any) -> "Iterator[Override]":
    """Stop the queue's clock now; `gnl_clock.advance(timedelta(hours=1))` moves it."""
    from gnl_django.testing import set_clock

    with set_clock() as moved:
        yield moved
