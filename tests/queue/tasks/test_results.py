"""From rows to a TaskResult: every state, whatever the row holds."""

from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("django.tasks", reason="django.tasks came with Django 6.0")

from django.tasks import TaskResultStatus, task_backends

from gnl_django.core import db
from gnl_django.models import Attempt, Job
from gnl_django.queue.store.looks import enqueued_at, look
from gnl_django.queue.tasks import results
from tests.app import tasks
from tests.conformance.helpers import running, statements

pytestmark = pytest.mark.django_db


def result_of(job_id: int) -> Any:
    stored = look("default", job_id)
    assert stored is not None
    return results.result_of(stored, tasks.add, "default")


def attempt(job_id: int, outcome: str, minutes: int, **values: Any) -> Attempt:
    at = db.now("default") + timedelta(minutes=minutes)
    return Attempt.objects.create(
        job_id=job_id,
        outcome=outcome,
        number=1,
        revival=0,
        worker=f"w{minutes}",
        claim_token="0" * 32,
        started_at=at,
        finished_at=at,
        error_class=f"gnl_django.errors.{outcome}",
        **values,
    )


@pytest.mark.row("queue", "C159")
def test_errors_are_the_failed_attempts_and_workers_all_of_them() -> None:
    job_id = int(tasks.add.enqueue(1).id)
    outcomes = ["failed", "released", "timeout", "lease_lost", "canceled", "invalid"]
    rows = [
        attempt(job_id, outcome, number, traceback="trace" if number else "", message=outcome)
        for number, outcome in enumerate(outcomes)
    ]
    result = result_of(job_id)
    assert [error.exception_class_path for error in result.errors] == [
        f"gnl_django.errors.{name}" for name in ("failed", "timeout", "lease_lost", "invalid")
    ]
    assert [error.traceback for error in result.errors] == ["failed", "trace", "trace", "trace"]
    assert result.worker_ids == ["w0", "w1", "w2", "w3", "w4", "w5"]
    assert (result.started_at, result.last_attempted_at) == (
        rows[0].started_at,
        rows[-1].started_at,
    )
    running(job_id, attempt=3)
    result = result_of(job_id)
    assert result.worker_ids[-1] == "elsewhere/host/1/abcdef"
    assert (result.attempts, result.status) == (7, TaskResultStatus.RUNNING)
    assert result.last_attempted_at == Job.objects.get(id=job_id).started_at


@pytest.mark.row("queue", "C159")
def test_a_dead_job_without_its_attempts_still_says_why() -> None:
    job_id = int(tasks.add.enqueue(1).id)
    Job.objects.filter(id=job_id).update(
        state="dead",
        finished_at=db.now("default"),
        error_class="builtins.ValueError",
        error="ValueError: no",
    )
    (error,) = result_of(job_id).errors
    assert (error.exception_class, error.traceback) == (ValueError, "ValueError: no")


def test_an_edited_row_gives_a_result_all_the_same() -> None:
    job_id = int(tasks.add.enqueue(1).id)
    Job.objects.filter(id=job_id).update(
        payload=[1], meta={"task": {"backend": 5, "run_after": 7, "run_in": "x"}}
    )
    result = result_of(job_id)
    assert (result.args, result.kwargs, result.backend) == ([], {}, "default")
    assert result.task.run_after is None


def test_a_first_attempt_is_read_by_one_statement() -> None:
    job_id = int(tasks.add.enqueue(1).id)
    with statements() as texts:
        result_of(job_id)
    assert len(texts) == 1
    attempt(job_id, "failed", 1)
    with statements() as texts:
        result_of(job_id)
    assert len(texts) == 2


def test_a_row_that_is_gone_or_somebody_elses_is_not_loaded() -> None:
    job_id = int(tasks.add.enqueue(1).id)
    token = running(job_id)
    assert look("default", job_id, token=token) is not None
    assert look("default", job_id, token="f" * 32) is None
    Job.objects.all().delete()
    assert look("default", job_id) is None
    assert enqueued_at("default", job_id) is None


def test_a_backend_is_ours_by_the_tasks_it_makes() -> None:
    assert results.is_ours(task_backends["any"])
    assert not results.is_ours(task_backends["dummy"])
    assert results.backend_of("missing") is None
    assert results.backend_of("unknown") is None
