"""GnlBackend: its flags, its options and what `manage.py check` says of them."""

from typing import Any

import pytest

pytest.importorskip("django.tasks", reason="django.tasks came with Django 6.0")

from django.core import checks
from django.core.checks import run_checks
from django.tasks import default_task_backend, task_backends
from django.tasks.exceptions import InvalidTask, InvalidTaskBackend

from gnl_django.models import Job
from gnl_django.queue.tasks.backend import GnlBackend
from tests.app import tasks

OURS = "gnl_django.tasks.GnlBackend"


@pytest.mark.row("queue", "C156")
def test_the_setting_chooses_the_backend(settings: Any) -> None:
    backend = task_backends["any"]
    assert default_task_backend == task_backends["default"]
    assert isinstance(backend, GnlBackend)
    assert (backend.alias, backend.options, backend.using) == (
        "any",
        {"using": "default"},
        "default",
    )
    assert task_backends["default"].queues == {"default", "low"}
    settings.TASKS = {}
    with pytest.raises(InvalidTaskBackend):
        tasks.add.enqueue(1)


@pytest.mark.row("queue", "C156")
def test_the_backend_can_all_that_a_backend_may() -> None:
    backend = task_backends["default"]
    assert backend.supports_defer
    assert backend.supports_async_task
    assert backend.supports_get_result
    assert backend.supports_priority


def test_without_the_option_the_jobs_are_where_the_setting_says(settings: Any) -> None:
    settings.GNL = {"DATABASE": "other"}
    assert GnlBackend("x", {}).using == "other"
    assert GnlBackend("x", {"OPTIONS": {"using": "third"}}).using == "third"


def found(alias: str = "default", **params: Any) -> list[tuple[str | None, type]]:
    return [(message.id, type(message)) for message in GnlBackend(alias, params).check()]


@pytest.mark.row("queue", "C156")
def test_the_check_names_what_would_not_work(settings: Any) -> None:
    assert found(QUEUES=["a", "b"], OPTIONS={"using": "default"}) == []
    assert found(QUEUES=[]) == []
    assert found(OPTIONS={"using": "nowhere"}) == [("gnl_django.E021", checks.Error)]
    assert found(QUEUES=["a", "*", 5]) == [("gnl_django.E022", checks.Error)] * 2
    assert found(OPTIONS={"database": "x"}) == [("gnl_django.W020", checks.Warning)]
    apps = [app for app in settings.INSTALLED_APPS if app != "gnl_django"]
    settings.INSTALLED_APPS = [app for app in apps if not app.startswith(("tests", "testproject"))]
    assert found() == [("gnl_django.E020", checks.Error)]


@pytest.mark.row("queue", "C156")
@pytest.mark.django_db
def test_django_runs_the_check(settings: Any) -> None:
    settings.TASKS = {"default": {"BACKEND": OURS, "OPTIONS": {"using": "nowhere", "x": 1}}}
    ids = {message.id for message in run_checks()}
    assert {"gnl_django.E021", "gnl_django.W020"} <= ids


@pytest.mark.django_db
def test_a_task_that_became_invalid_is_not_enqueued(settings: Any) -> None:
    low = tasks.add.using(queue_name="low")
    settings.TASKS = {"default": {"BACKEND": OURS}}
    with pytest.raises(InvalidTask, match="Queue 'low'"):
        low.enqueue(1)
    assert Job.objects.count() == 0


@pytest.mark.django_db
def test_a_function_as_backoff_that_a_worker_could_not_find_is_not_enqueued() -> None:
    with pytest.raises(InvalidTask, match="where the task is defined"):
        tasks.add.using(backoff=lambda error, result: 1).enqueue(1)
    assert Job.objects.count() == 0


@pytest.mark.django_db
@pytest.mark.row("queue", "C164")
def test_no_name_in_a_row_is_imported() -> None:
    import sys

    result = tasks.add.enqueue(1)
    Job.objects.update(kind="antigravity.fly")
    with pytest.raises(InvalidTask, match=r"antigravity\.fly"):
        tasks.add.get_result(result.id)
    assert "antigravity" not in sys.modules
