"""GnlTask: which options it takes, in what form, and what of them travels with a job."""

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("django.tasks", reason="django.tasks came with Django 6.0")

import django
from django.tasks import Task, task, task_backends
from django.tasks.exceptions import InvalidTask, InvalidTaskBackend

from gnl_django.queue.tasks.task import (
    GnlTask,
    backoff_of,
    extra_of,
    marked,
    restored,
    timeout_of,
    to_meta,
)
from tests.app import tasks

SOON = datetime(2031, 5, 7, 12, 0, tzinfo=UTC)
FORWARDS = django.VERSION >= (6, 1)


@pytest.mark.row("queue", "C156")
def test_the_decorator_makes_a_task_with_the_queues_defaults(settings: Any) -> None:
    for made in (tasks.add, tasks.nothing, tasks.add_async):
        assert isinstance(made, GnlTask)
        assert isinstance(made, Task)
    plain = tasks.add
    assert (plain.priority, plain.queue_name, plain.backend) == (0, "default", "default")
    assert (plain.run_after, plain.takes_context, plain.max_attempts) == (None, False, 5)
    assert (plain.backoff, plain.timeout, plain.key, plain.org) == (None,) * 4
    assert (plain.name, plain.module_path) == ("add", "tests.app.tasks.add")
    assert plain.get_backend() is task_backends["default"]
    settings.GNL = {"MAX_ATTEMPTS": 2}
    assert task()(tasks.add.func).max_attempts == 2


@pytest.mark.row("queue", "C156")
@pytest.mark.skipif(not FORWARDS, reason="Django's decorator forwards keywords since 6.1")
def test_the_decorator_takes_the_queues_options() -> None:
    made: Any = task(priority=10, queue_name="low", max_attempts=3, timeout=2, org="acme")(
        tasks.add.func
    )
    assert (made.priority, made.queue_name, made.max_attempts) == (10, "low", 3)
    assert (made.timeout, made.org) == (2.0, "acme")
    with pytest.raises(TypeError):
        task(unknown=1)(tasks.add.func)
    with pytest.raises(TypeError, match="run_after"):
        task(run_after=SOON)(tasks.add.func)


@pytest.mark.row("queue", "C156")
def test_using_returns_another_task_and_keeps_what_is_not_named() -> None:
    same = tasks.add.using()
    assert same == tasks.add
    assert same is not tasks.add
    first = tasks.add.using(run_after=SOON, org="acme", backoff=(1, 2))
    second = first.using(priority=10, key="k")
    assert (second.run_after, second.org, second.backoff) == (SOON, "acme", (1.0, 2.0))
    assert (second.priority, second.key) == (10, "k")
    assert (tasks.add.priority, tasks.add.run_after, first.priority) == (0, None, 0)
    assert copy.replace(tasks.add, priority=3).priority == 3


@pytest.mark.row("queue", "C156")
@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 0}, {"max_attempts": True}, {"max_attempts": 2.0}, {"max_attempts": 4**9},
        {"backoff": -1}, {"backoff": "5"}, {"backoff": []}, {"backoff": [1, "x"]},
        {"backoff": float("nan")}, {"timeout": -1}, {"timeout": True}, {"timeout": "1"},
        {"key": ""}, {"key": "x" * 256}, {"key": 5}, {"key": "job:1"}, {"org": ""}, {"org": " a"},
        {"org": 5}, {"run_after": timedelta(seconds=-1)}, {"run_after": timedelta(days=99_999)},
        {"run_after": datetime(2031, 5, 7)}, {"run_after": "soon"}, {"run_after": 5},  # noqa: DTZ001
        {"priority": -101}, {"priority": 101}, {"priority": 3.1}, {"priority": 5.0},
        {"priority": True}, {"priority": "1"}, {"queue_name": "unknown"},
        {"queue_name": "not a name", "backend": "any"}, {"queue_name": "*", "backend": "any"},
    ],
)  # fmt: skip
def test_what_no_job_can_have_is_no_option(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidTask):
        tasks.add.using(**options)


@pytest.mark.row("queue", "C156")
def test_what_a_job_can_have_is_an_option() -> None:
    for priority in (-100, 0, 100):
        assert tasks.add.using(priority=priority).priority == priority
    assert tasks.add.using(backend="any", queue_name="whatever").queue_name == "whatever"
    assert tasks.add.using(timeout=timedelta(minutes=1)).timeout == 60.0
    assert tasks.add.using(backoff=0).backoff == 0.0
    assert tasks.asks.backoff is tasks.asked


@pytest.mark.row("queue", "C156")
@pytest.mark.parametrize(
    ("alias", "text"),
    [("unknown", "doesn't exist"), ("missing", "Could not find backend 'does.not.Exist'")],
)
def test_a_backend_that_is_none_is_refused(alias: str, text: str) -> None:
    with pytest.raises(InvalidTaskBackend, match=text):
        tasks.add.using(backend=alias)


@pytest.mark.row("queue", "C156")
def test_a_function_that_is_no_task_of_a_module_is_refused() -> None:
    def local() -> None:
        """Stand inside a function."""

    for function in (any, local):
        with pytest.raises(InvalidTask, match="module level"):
            task()(function)
    with pytest.raises(InvalidTask, match="context"):
        task(takes_context=True)(tasks.add.func)


@pytest.mark.row("queue", "C156")
@pytest.mark.skipif(not FORWARDS, reason="tasks can be pickled since Django 6.1")
def test_a_task_survives_a_copy_by_its_path() -> None:
    late = tasks.asks.using(run_after=timedelta(minutes=1), key="k")
    assert copy.copy(late) == late
    assert copy.copy(late).run_in == timedelta(minutes=1)


@pytest.mark.row("queue", "C156")
def test_a_task_moves_to_another_backend_and_back() -> None:
    moved = tasks.add.using(backend="dummy", run_after=timedelta(hours=1), max_attempts=2)
    result = moved.enqueue(1)
    assert (result.backend, result.args) == ("dummy", [1])
    assert moved.using(backend="default").max_attempts == 2
    theirs: Any = tasks.elsewhere
    assert not isinstance(theirs, GnlTask)
    ours = theirs.using(backend="any")
    assert ours.get_backend() is task_backends["any"]
    assert extra_of(ours) == (5, None, None, None, None, None)


def test_only_what_differs_from_the_definition_travels_with_the_job() -> None:
    definition = tasks.fails
    assert to_meta(definition, definition, "") == {"task": {"backend": "default"}}
    other = definition.using(timeout=2, backoff=[1, 2], run_after=SOON, backend="any")
    assert to_meta(other, definition, "c1") == {
        "task": {
            "backend": "any",
            "call": "c1",
            "run_after": "2031-05-07T12:00:00+00:00",
            "timeout": 2.0,
            "backoff": (1.0, 2.0),
        }
    }
    late = other.using(run_after=timedelta(minutes=1))
    assert to_meta(late, definition, "")["task"]["run_in"] == 60.0
    assert "run_after" not in to_meta(late, definition, "")["task"]
    assert "run_in" not in to_meta(late.using(run_after=SOON), definition, "")["task"]


def test_a_function_as_backoff_must_be_the_definitions() -> None:
    assert "backoff" not in to_meta(tasks.asks.using(key="k"), tasks.asks, "")["task"]
    with pytest.raises(InvalidTask, match="where the task is defined"):
        to_meta(tasks.asks.using(backoff=lambda error, result: 1), tasks.asks, "")


def test_what_a_job_says_wins_over_the_definition() -> None:
    definition = tasks.fails.using(timeout=5)
    assert (timeout_of(definition, {}), backoff_of(definition, {})) == (5.0, (0.0,))
    assert timeout_of(definition, {"timeout": None}) is None
    assert backoff_of(definition, {"backoff": [1, 2]}) == (1, 2)
    assert backoff_of(definition, {"backoff": 3}) == 3
    for meta in (None, {}, [], {"task": 5}, {"other": 1}):
        assert marked(meta) == {}


def test_a_task_can_be_restored_with_what_is_no_longer_allowed() -> None:
    old = restored(tasks.add, queue_name="gone", backend="gone", priority=5)
    assert (old.queue_name, old.backend, old.priority) == ("gone", "gone", 5)
    assert old.func is tasks.add.func
    assert restored(old, queue_name="default", backend="default", priority=0) == tasks.add
