"""A project that manages transactions by hand: `set_autocommit(False)`, `commit()` (R3, R8)."""

from collections.abc import Iterator

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, transaction

from gnl_django import cancel_job, enqueue_many, pause_queue, retry_job
from gnl_django.core import db
from gnl_django.models import Job, QueueState
from gnl_django.queue import serving
from gnl_django.queue.options import NewJob
from tests.conformance.conftest import Declare, MakeWorker, declare, make_worker
from tests.conformance.helpers import state_of

__all__ = ["declare", "make_worker"]

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def by_hand() -> Iterator[None]:
    """Take the transactions of this thread into the test's own hands."""
    connection.ensure_connection()
    transaction.set_autocommit(False)
    yield
    transaction.rollback()
    transaction.set_autocommit(True)


@pytest.mark.usefixtures("by_hand")
def test_what_is_given_lasts_with_the_callers_commit_and_goes_with_his_rollback(
    declare: Declare,
) -> None:
    kind = declare("t.plain")
    for end, stored in ((transaction.rollback, 0), (transaction.commit, 5)):
        first = kind.enqueue()
        assert kind.enqueue(key="once") == kind.enqueue(key="once")
        enqueue_many([NewJob(kind, n, max_depth=9) for n in range(3)])
        assert cancel_job(first)
        assert retry_job(first) == first
        pause_queue("low")
        end()
        assert Job.objects.count() == stored
        assert QueueState.objects.exists() is bool(stored)
    assert state_of(first) == "ready"


@pytest.mark.usefixtures("by_hand")
def test_nobody_is_told_of_a_commit_that_nobody_hears_of() -> None:
    told: list[int] = []
    db.after_commit("default", lambda: told.append(1))
    transaction.commit()
    assert not told


def test_elsewhere_one_is_told_at_the_commit_and_errors_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[int] = []
    db.after_commit("default", lambda: told.append(1))
    with transaction.atomic():
        db.after_commit("default", lambda: told.append(2))
        db.after_commit("default", lambda: 1 // 0)
        assert told == [1]
    assert told == [1, 2]
    assert "ZeroDivisionError" in caplog.text


def test_a_worker_refuses_a_database_that_never_commits_by_itself(
    monkeypatch: pytest.MonkeyPatch, make_worker: MakeWorker
) -> None:
    serving.wait_for_schema("default")
    monkeypatch.setitem(connection.settings_dict, "AUTOCOMMIT", False)
    with pytest.raises(ImproperlyConfigured, match="AUTOCOMMIT"):
        serving.wait_for_schema("default")
