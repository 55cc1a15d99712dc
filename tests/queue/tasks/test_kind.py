"""TaskKind: a function as a kind, its definition, and an attempt whose row cannot be read."""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("django.tasks", reason="django.tasks came with Django 6.0")

from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError, connection
from django.tasks import task
from django.tasks.exceptions import InvalidTask

from gnl_django import Worker, job
from gnl_django.core import failpoints
from gnl_django.errors import InvalidPayload
from gnl_django.models import Attempt, Job
from gnl_django.queue.kinds import JobKind
from gnl_django.queue.options import kinds
from gnl_django.queue.tasks.kind import TaskKind, register
from tests.app import tasks

SOURCE = """
from django.tasks import task

@task
def send(to, subject="hello"):
    return to

@task(takes_context=True)
def tell(context, to):
    return to
"""


@pytest.fixture
def module() -> Iterator[ModuleType]:
    """A module `gnltest_mail` with two tasks."""
    made = ModuleType("gnltest_mail")
    sys.modules[made.__name__] = made
    exec(SOURCE, made.__dict__)  # noqa: S102 - our own text
    yield made
    del sys.modules[made.__name__]
    for name in list(kinds):
        if name.startswith("gnltest_mail."):
            kinds.forget(name)


def kind_of(made: Any) -> TaskKind:
    found = kinds.known(made.module_path)
    assert isinstance(found, TaskKind)
    return found


def test_a_validated_task_is_a_kind(module: ModuleType) -> None:
    kind = kind_of(module.send)
    assert (kind.kind, kind.origin) == ("gnltest_mail.send", "gnltest_mail.send")
    assert (kind.func, kind.task) == (module.send.func, module.send)
    assert (kind.is_async, kind.takes_context, kind.sensitive) == (False, True, False)
    assert register(module.send) is kind
    assert register(module.send.using(priority=3)) is kind
    assert kind_of(tasks.add_async).is_async is True
    assert repr(kind) == "<JobKind gnltest_mail.send gnltest_mail.send>"


def test_the_task_that_bears_the_functions_name_defines_it(module: ModuleType) -> None:
    kind = kind_of(module.send)
    assert (kind.queue, kind.priority, kind.max_attempts) == ("default", 0, 5)
    module.send_low = module.send.using(queue_name="low")
    assert kind.task is module.send
    module.send = module.send.using(queue_name="low", priority=3, max_attempts=2)
    assert kind.task is module.send
    assert (kind.queue, kind.priority, kind.max_attempts) == ("low", 3, 2)
    first = kind._first
    for other in ("no task", module.tell):
        module.send = other
        assert kind.task is first


def test_a_module_that_is_loaded_again_replaces_its_kinds(module: ModuleType) -> None:
    old = module.send
    exec(SOURCE, module.__dict__)  # noqa: S102 - our own text
    assert kind_of(old).func is module.send.func
    assert module.send.func is not old.func


def test_a_path_that_is_no_kind_is_refused(module: ModuleType) -> None:
    def tasked(name: str, qualname: str) -> Any:
        def function() -> None:
            """Do nothing."""

        function.__module__, function.__qualname__ = name, qualname
        return task()(function)

    for name, qualname, text in (
        ("gnltest_mail", "x" * 128, "its kind"),
        ("gnltest_mail", "größe", "its kind"),
        ("gnl.mail", "send", "reserved"),
    ):
        with pytest.raises(InvalidTask, match=text):
            tasked(name, qualname)
    job("gnltest_mail.sell")(lambda payload: None)
    with pytest.raises(InvalidTask, match="kind of a job already"):
        tasked("gnltest_mail", "sell")
    with pytest.raises(ImproperlyConfigured, match="declared twice"):
        job("gnltest_mail.send")(lambda payload: None)


@pytest.mark.parametrize(
    "payload", [None, [], {}, {"args": []}, {"args": 1, "kwargs": {}}, {"args": [], "kwargs": []}]
)
def test_a_payload_is_args_and_kwargs(module: ModuleType, payload: Any) -> None:
    kind = kind_of(module.send)
    with pytest.raises(InvalidPayload, match="args"):
        kind.encode(payload, max_bytes=100)


def test_arguments_become_canonical_json_and_back(module: ModuleType) -> None:
    kind, told = kind_of(module.send), kind_of(module.tell)
    text = kind.encode({"kwargs": {"to": ("a", "b")}, "args": ()}, max_bytes=100)
    assert text == '{"args":[],"kwargs":{"to":["a","b"]}}'
    assert kind.decode(text) == {"args": [], "kwargs": {"to": ["a", "b"]}}
    assert told.decode('{"args":["x"],"kwargs":{}}')["args"] == ["x"]
    with pytest.raises(InvalidPayload, match="larger than 20 bytes"):
        kind.encode({"args": ["x" * 30], "kwargs": {}}, max_bytes=20)
    with pytest.raises(InvalidPayload, match="larger"):
        kind.encode({"args": [[[]] * 30], "kwargs": {}}, max_bytes=20)


@pytest.mark.parametrize(
    "text", [None, "1", '{"args":[],"kwargs":{}}', '{"args":[1],"kwargs":{"from":1}}']
)
def test_stored_arguments_that_do_not_fit_are_an_invalid_payload(
    module: ModuleType, text: str | None
) -> None:
    with pytest.raises(InvalidPayload):
        kind_of(module.send).decode(text)


def test_other_kinds_want_to_hear_of_no_end() -> None:
    assert JobKind.wants_finals is False
    assert TaskKind.wants_finals is True


@pytest.mark.django_db(transaction=True)
def test_a_row_that_cannot_be_read_costs_no_attempt(settings: Any) -> None:
    settings.GNL = {"FAILPOINTS": True}
    broken = []

    def fail(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if "gnl_django_job" in sql and not broken:
            broken.append(sql)
            raise OperationalError("the connection is gone")
        return execute(sql, params, many, context)

    failpoints.hook("handler.before", lambda: connection.execute_wrappers.append(fail))
    worker = Worker()
    try:
        result = tasks.where.using(max_attempts=1).enqueue()
        assert worker.run_once() == 1
    finally:
        failpoints.hook("handler.before", None)
        worker.stop(5)
        tasks.CALLS.clear()
    found = Job.objects.get(id=result.id)
    assert (found.state, found.attempt, found.deferrals) == ("scheduled", 0, 1)
    assert Attempt.objects.count() == 0
    assert len(broken) == 1
