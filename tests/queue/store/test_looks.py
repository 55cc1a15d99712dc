"""Reads of one job: the same values as the ORM's, on every database."""

from datetime import timedelta
from typing import Any

import pytest

from gnl_django import enqueue
from gnl_django.core import db
from gnl_django.models import Attempt, Job
from gnl_django.queue.kinds import JobKind
from gnl_django.queue.store.looks import enqueued_at, look
from tests.conformance.helpers import running, statements

pytestmark = pytest.mark.django_db


@pytest.fixture
def kind() -> Any:
    """A kind of any JSON."""
    from gnl_django import job
    from gnl_django.queue.options import kinds

    made: JobKind[Any] = job("t.looked_at")(lambda payload: None)
    yield made
    kinds.forget("t.looked_at")


def test_a_job_is_read_as_the_orm_reads_it(kind: Any) -> None:
    payload = {"b": [1, None, "ü"], "a": 1.5}
    job_id = enqueue(kind, payload, key="k", org="acme", priority=3, meta={"x": 1})
    token = running(job_id)
    found, row = look("default", job_id), Job.objects.get(id=job_id)
    assert found is not None
    assert found.attempts == ()
    for name in type(found).__dataclass_fields__:
        if name != "attempts":
            assert getattr(found, name) == getattr(row, name)
    assert found.started_at is not None
    assert found.started_at.utcoffset() == timedelta(0)
    assert enqueued_at("default", job_id) == row.enqueued_at
    assert look("default", job_id, token=token) == found
    assert look("default", job_id, token="f" * 32) is None


def test_attempts_cost_a_second_statement_and_come_oldest_first(kind: Any) -> None:
    job_id = enqueue(kind)
    with statements() as texts:
        look("default", job_id)
    assert len(texts) == 1
    now = db.now("default")
    for minutes, outcome in ((2, "failed"), (1, "timeout")):
        at = now + timedelta(minutes=minutes)
        Attempt.objects.create(
            job_id=job_id, number=1, revival=0, outcome=outcome, error_class="a.B", message="m",
            traceback="t", worker="w", claim_token="0" * 32, started_at=at, finished_at=at,
        )  # fmt: skip
    with statements() as texts:
        found = look("default", job_id)
    assert len(texts) == 2
    assert found is not None
    assert [(a.outcome, a.started_at) for a in found.attempts] == [
        ("failed", now + timedelta(minutes=2)),
        ("timeout", now + timedelta(minutes=1)),
    ]
    assert (found.payload, found.result, found.started_at) == (None, None, None)


def test_a_job_that_is_gone_is_nothing() -> None:
    assert look("default", 1) is None
    assert enqueued_at("default", 1) is None
