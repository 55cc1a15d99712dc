"""The helpers for users' tests, in a transaction and outside, and as docs/testing.md says."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import TestCase
from pydantic import BaseModel

from gnl_django import JobContext, cancel_job, job
from gnl_django.core import db
from gnl_django.models import Job
from gnl_django.queue.options import kinds
from gnl_django.testing import (
    ANY,
    assert_enqueued,
    assert_not_enqueued,
    enqueued_jobs,
    run_jobs,
    set_clock,
)
from tests import docs
from tests.conformance.conftest import Declare, declare

__all__ = ["declare"]


class Parcel(BaseModel):
    """A payload."""

    weight: int
    sent: datetime | None = None


def test_the_examples_of_the_docs_pass(tmp_path: Path) -> None:
    files = docs.examples("testing.md")
    assert set(files) == {
        *("shop/background.py", "conftest.py", "test_shop.py", "test_shop_with_pytest.py"),
    }
    assert "3 passed" in docs.pytest_in(tmp_path, files)


class InATestCase(TestCase):
    """In the test's own transaction and thread."""

    def setUp(self) -> None:
        """Declare a kind that gives a child."""

        def parent(payload: Any, ctx: JobContext) -> None:
            self.connections.append(connection.connection)
            ctx.enqueue("t.child", {"of": ctx.job_id}, queue="other")

        self.connections: list[object] = []
        job("t.parent")(parent)
        job("t.child")(lambda payload: payload["of"])
        self.addCleanup(kinds.forget, "t.parent")
        self.addCleanup(kinds.forget, "t.child")

    def test_jobs_and_their_children_run_in_every_queue_on_the_tests_connection(self) -> None:
        with self.captureOnCommitCallbacks():
            (parent,) = kinds.known("t.parent").enqueue_many([1], org="acme")  # type: ignore[union-attr]
        assert run_jobs() == 2
        assert self.connections == [connection.connection]
        assert [(j.kind, j.org, j.result) for j in enqueued_jobs()] == [
            ("t.parent", "acme", None),
            ("t.child", "acme", parent),
        ]
        assert run_jobs() == 0

    def test_only_the_named_queues_are_run(self) -> None:
        kinds.known("t.parent").enqueue()  # type: ignore[union-attr]
        assert run_jobs(["default"]) == 1
        assert [j.state for j in enqueued_jobs("t.child")] == ["ready"]


@pytest.mark.django_db(transaction=True)
def test_outside_a_transaction_jobs_run_as_in_production(declare: Declare) -> None:
    seen = []

    def handle(payload: Any) -> None:
        seen.append(connection.in_atomic_block)
        Job.objects.count()

    declare("t.plain", handle).enqueue_many(range(5))
    assert run_jobs(concurrency=2) == 5
    assert seen == [False] * 5


@pytest.mark.django_db
def test_a_failure_is_raised_when_all_have_run_and_else_left_to_the_retries(
    declare: Declare,
) -> None:
    def handle(payload: Any) -> None:
        if payload == 1:
            raise LookupError("gone")

    kind = declare("t.plain", handle, max_attempts=2, retry_delay=60)
    kind.enqueue_many(range(3))
    with pytest.raises(LookupError, match="gone"):
        run_jobs()
    assert [job.state for job in enqueued_jobs()] == ["succeeded", "scheduled", "succeeded"]
    with set_clock() as clock:
        clock.advance(timedelta(seconds=61))
        assert run_jobs(raising=False) == 1
    assert_enqueued(kind, 1, state="dead")


@pytest.mark.django_db
def test_jobs_are_found_by_kind_and_fields(declare: Declare) -> None:
    kind, other = declare("t.plain", queue="mail"), declare("t.other")
    first = kind.enqueue({"a": 1}, key="k", meta={"m": 1}, priority=3, max_attempts=2)
    second = kind.enqueue({"a": 1}, org="acme", delay=60)
    third = other.enqueue()
    assert [job.id for job in enqueued_jobs()] == [first, second, third]
    for fields, ids in (
        ({"org": None}, [first]),
        ({"org": "acme"}, [second]),
        ({"state": "scheduled"}, [second]),
        ({"key": "k", "meta": {"m": 1}, "priority": 3, "max_attempts": 2}, [first]),
        ({"queue": "default"}, []),
    ):
        assert [job.id for job in enqueued_jobs(kind, **fields)] == ids  # type: ignore[arg-type]
    cancel_job(third)
    assert [job.id for job in enqueued_jobs("t.other")] == [third]
    with pytest.raises(TypeError, match="not found by owner"):
        enqueued_jobs(owner="acme")


@pytest.mark.django_db
def test_a_payload_is_compared_as_it_is_stored(declare: Declare) -> None:
    def handle(payload: Parcel) -> None:
        """Do nothing."""

    kind = declare("t.parcel", handle)
    parcel = Parcel(weight=5, sent=datetime(2031, 1, 2, tzinfo=UTC))
    kind.enqueue(parcel)
    (found,) = assert_enqueued(kind, parcel)
    assert assert_enqueued("t.parcel", {"weight": 5, "sent": "2031-01-02T00:00:00Z"}) == [found]
    assert assert_enqueued("t.parcel") == [found]
    assert_not_enqueued(kind, Parcel(weight=6))
    assert_not_enqueued("t.unknown", {"a": 1})
    kind.enqueue(parcel)
    assert len(assert_enqueued(kind, parcel, times=2)) == 2
    assert repr(ANY) == "ANY"


@pytest.mark.django_db
def test_what_was_enqueued_instead_is_shown(declare: Declare) -> None:
    kind = declare("t.plain")
    with pytest.raises(AssertionError, match=r"0 jobs, not 1, .* nothing was enqueued"):
        assert_enqueued(kind, 5)
    kind.enqueue({"a": 1}, org="acme", key="k")
    with pytest.raises(AssertionError) as failed:
        assert_enqueued(kind, {"a": 2}, org="acme")
    assert str(failed.value).splitlines() == [
        "0 jobs, not 1, of 't.plain' with payload {'a': 2}, org='acme'; enqueued were:",
        "  t.plain {'a': 1} queue='default' org='acme' key='k' state='ready'",
    ]
    with pytest.raises(AssertionError, match="1 jobs, not 0"):
        assert_not_enqueued(kind)


@pytest.mark.django_db
def test_the_clock_stands_where_it_is_set_and_goes_on_afterwards(declare: Declare) -> None:
    moment = datetime(2031, 5, 7, 12, tzinfo=UTC)
    with set_clock(moment) as clock:
        job_id = declare("t.plain").enqueue()
        assert Job.objects.get(id=job_id).enqueued_at == moment
        clock.advance(timedelta(days=1))
        assert db.now("default") == moment + timedelta(days=1)
        clock.set(moment)
        assert db.now("default") == moment
    assert db.now("default") < moment
