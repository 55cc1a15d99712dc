"""Kinds: what @job accepts, what it returns, and how a payload passes through its type."""

import asyncio
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.core.exceptions import ImproperlyConfigured
from pydantic import BaseModel, Field, field_validator
from typing_extensions import TypedDict

from gnl_django import InvalidPayload, JobKind, job
from gnl_django.models import Job
from gnl_django.queue.options import kinds
from tests.conformance.conftest import Declare

MIB = 1_048_576
MARKER = "hunter2"


class Mail(BaseModel):
    to: str
    copies: int = Field(default=1, ge=1)
    sent_on: date | None = None


@dataclass
class Point:
    x: int
    y: int = 0


class Options(TypedDict):
    name: str


def wants_mail(payload: Mail) -> Mail:
    return payload


def wants_point(payload: Point) -> None: ...
def wants_options(payload: Options) -> None: ...
def wants_uuid(payload: UUID) -> None: ...
def wants_maybe(payload: int | None) -> None: ...
def wants_numbers(payload: dict[str, list[int]]) -> None: ...
def wants_dict(payload: dict) -> None: ...  # type: ignore[type-arg]
def wants_any(payload: Any) -> None: ...
def wants_nothing(payload) -> None: ...  # type: ignore[no-untyped-def]


def test_a_kind_keeps_what_it_was_declared_with(declare: Declare) -> None:
    def handle(payload: Any) -> None:
        """Does nothing."""

    kind = declare(
        "a.b:c/d-e_1",
        handle,
        queue="low",
        max_attempts=2,
        retry_delay=[1, 2],
        max_hold=timedelta(minutes=1),
        priority=-100,
        sensitive=True,
    )
    assert isinstance(kind, JobKind)
    assert (kind.kind, kind.queue, kind.max_attempts) == ("a.b:c/d-e_1", "low", 2)
    assert (kind.retry_delay, kind.max_hold, kind.priority) == ([1, 2], 60.0, -100)
    assert kind.sensitive
    assert kind.__doc__ == "Does nothing."
    assert kind.__name__ == "handle"
    assert kind.__wrapped__ is handle  # type: ignore[attr-defined]
    assert kind.origin == f"{__name__}.{handle.__qualname__}"
    assert "a.b:c/d-e_1" in repr(kind)


def test_the_defaults_of_a_kind(declare: Declare) -> None:
    kind = declare("t.kind")
    assert (kind.queue, kind.max_attempts, kind.priority) == ("default", 5, 0)
    assert (kind.retry_delay, kind.max_hold, kind.sensitive) == (None, None, False)


def test_calling_a_kind_calls_its_function(declare: Declare) -> None:
    kind = declare("t.kind", lambda payload, ctx=None: (payload, ctx))
    assert kind(1) == (1, None)
    assert kind(1, ctx=2) == (1, 2)


@pytest.mark.parametrize(
    ("name", "options", "error", "word"),
    [
        ("", {}, ValueError, "kind"),
        ("a b", {}, ValueError, "kind"),
        ("a\n", {}, ValueError, "kind"),
        ("ü", {}, ValueError, "kind"),
        ("x" * 129, {}, ValueError, "kind"),
        (None, {}, TypeError, "kind"),
        ("gnl.step", {}, ValueError, "reserved"),
        ("a", {"queue": "*"}, ValueError, "queue"),
        ("a", {"queue": "x" * 65}, ValueError, "queue"),
        ("a", {"queue": None}, TypeError, "queue"),
        ("a", {"priority": 101}, ValueError, "priority"),
        ("a", {"priority": True}, TypeError, "priority"),
        ("a", {"max_attempts": 0}, ValueError, "max_attempts"),
        ("a", {"max_attempts": 32_768}, ValueError, "max_attempts"),
        ("a", {"max_attempts": True}, TypeError, "max_attempts"),
        ("a", {"retry_delay": -1}, ValueError, None),
        ("a", {"retry_delay": []}, ValueError, "retry_delay"),
        ("a", {"retry_delay": [1, -1]}, ValueError, None),
        ("a", {"retry_delay": True}, TypeError, None),
        ("a", {"retry_delay": "5"}, (TypeError, ValueError), None),
        ("a", {"max_hold": -1}, ValueError, None),
        ("a", {"max_hold": "5"}, TypeError, None),
        ("a", {"colour": "red"}, TypeError, "colour"),
    ],
)
def test_a_wrong_declaration_is_refused(
    name: Any, options: dict[str, Any], error: Any, word: str | None
) -> None:
    before = list(kinds)
    with pytest.raises(error, match=word):
        job(name, **options)(lambda payload: None)
    assert list(kinds) == before


@pytest.mark.parametrize(
    "handler", [lambda: None, lambda a, b, c: None, lambda *, payload: None], ids=["0", "3", "kw"]
)
def test_a_handler_takes_a_payload_and_perhaps_a_context(handler: Callable[..., None]) -> None:
    with pytest.raises(TypeError, match="payload"):
        job("t.wrong")(handler)
    assert kinds.known("t.wrong") is None


def test_a_second_parameter_is_the_context(declare: Declare) -> None:
    assert not declare("t.one", lambda payload: None).takes_context
    assert declare("t.two", lambda payload, ctx: None).takes_context


def test_a_coroutine_function_is_known_as_such(declare: Declare) -> None:
    async def handle(payload: Any) -> str:
        await asyncio.sleep(0)
        return "done"

    kind = declare("t.async", handle)
    assert kind.is_async
    assert asyncio.run(kind(1)) == "done"
    assert not declare("t.sync").is_async


def test_a_reload_replaces_and_another_function_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "from gnl_django import job\n\n@job('t.reload')\ndef handle(payload):\n    pass\n"
    module_file = tmp_path / "gnl_test_reload.py"
    module_file.write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    try:
        module = importlib.import_module("gnl_test_reload")
        first = kinds.known("t.reload")
        importlib.reload(module)
        second = kinds.known("t.reload")
        assert second is not first
        assert second is module.handle
        with pytest.raises(ImproperlyConfigured, match=r"t\.reload.*gnl_test_reload\.handle"):
            job("t.reload")(lambda payload: None)
        assert kinds.known("t.reload") is second
    finally:
        kinds.forget("t.reload")
        sys.modules.pop("gnl_test_reload", None)


@pytest.mark.parametrize(
    ("handler", "payload", "text", "decoded"),
    [
        (wants_mail, {"to": "a"}, '{"copies":1,"sent_on":null,"to":"a"}', Mail(to="a")),
        (wants_mail, Mail(to="a", sent_on=date(2031, 5, 7)), None, None),
        (wants_point, Point(1), '{"x":1,"y":0}', Point(1)),
        (wants_point, {"x": 1}, '{"x":1,"y":0}', Point(1)),
        (wants_options, {"name": "n"}, '{"name":"n"}', {"name": "n"}),
        (wants_uuid, "0f8fad5b-d9cb-469f-a165-70867728950e", None, None),
        (wants_maybe, None, None, None),
        (wants_maybe, 5, "5", 5),
        (wants_numbers, {"a": [1]}, '{"a":[1]}', {"a": [1]}),
        (wants_dict, ["not", "a", "dict"], '["not","a","dict"]', ["not", "a", "dict"]),
        (wants_any, 1.5, "1.5", 1.5),
        (wants_nothing, {"x": None}, '{"x":null}', {"x": None}),
    ],
)
def test_a_payload_goes_through_its_type_and_comes_back(
    declare: Declare, handler: Any, payload: Any, text: str | None, decoded: Any
) -> None:
    kind = declare("t.typed", handler)
    found = kind.encode(payload, max_bytes=MIB)
    if text is not None:
        assert found == text
        assert kind.decode(found) == decoded
    else:
        again = kind.decode(found)
        assert kind.encode(again, max_bytes=MIB) == found


@pytest.mark.parametrize(
    ("handler", "payload", "paths"),
    [
        (wants_mail, {}, ["/to"]),
        (wants_mail, {"to": 5, "copies": 0}, ["/to", "/copies"]),
        (wants_mail, None, ["/"]),
        (wants_point, {"y": 1}, ["/x"]),
        (wants_options, {}, ["/name"]),
        (wants_uuid, "x", ["/"]),
        (wants_numbers, {"a": [1, "b"]}, ["/a/1"]),
        (wants_numbers, [], ["/"]),
    ],
)
def test_a_payload_that_does_not_fit_names_its_paths(
    declare: Declare, handler: Any, payload: Any, paths: list[str]
) -> None:
    kind = declare("t.typed", handler)
    with pytest.raises(InvalidPayload) as error:
        kind.encode(payload, max_bytes=MIB)
    assert [issue.path for issue in error.value.issues] == paths
    assert error.value.kind == "t.typed"
    assert error.value.__cause__ is None


def test_a_model_that_was_spoilt_after_its_making_is_refused(declare: Declare) -> None:
    kind = declare("t.typed", wants_mail)
    mail = Mail(to="a")
    mail.copies = "many"  # type: ignore[assignment]
    with pytest.raises(InvalidPayload):
        kind.encode(mail, max_bytes=MIB)


@pytest.mark.parametrize("text", ["", "{", '{"to":', "nul", '{"to":5}', "[]", None])
def test_a_stored_text_that_does_not_fit_is_an_invalid_payload(
    declare: Declare, text: str | None
) -> None:
    kind = declare("t.typed", wants_mail)
    with pytest.raises(InvalidPayload):
        kind.decode(text)


def test_a_stored_text_that_is_no_json_is_invalid_for_an_untyped_kind_too(
    declare: Declare,
) -> None:
    kind = declare("t.any", wants_any)
    assert kind.decode(None) is None
    for text in ("", "{", "nul", "[" * 100_000):
        with pytest.raises(InvalidPayload):
            kind.decode(text)


class Secret(BaseModel):
    card: str

    @field_validator("card")
    @classmethod
    def is_a_number(cls, value: str) -> str:
        if not value.isdigit():
            raise ValueError(f"{value!r} is no number")
        return value


class Wrong(BaseModel):
    card: UUID


def wants_secret(payload: Secret) -> None: ...
def wants_card(payload: Wrong) -> None: ...


@pytest.mark.parametrize("handler", [wants_secret, wants_card, wants_numbers])
def test_the_issues_of_a_sensitive_kind_hold_nothing_of_the_input(
    declare: Declare, handler: Any
) -> None:
    kind = declare("t.secret", handler, sensitive=True)
    with pytest.raises(InvalidPayload) as error:
        kind.encode({"card": MARKER}, max_bytes=MIB)
    text = f"{error.value} {error.value.issues!r} {error.value.args!r}"
    assert MARKER not in text
    assert "/card" in text
    with pytest.raises(InvalidPayload) as stored:
        kind.decode('{"card":"' + MARKER + '"}')
    assert MARKER not in f"{stored.value} {stored.value.issues!r}"


@pytest.mark.django_db
def test_a_kind_gives_one_job_or_many(declare: Declare) -> None:
    kind = declare("t.kind")
    first = kind.enqueue({"n": 0}, org="o")
    more = kind.enqueue_many([{"n": 1}, {"n": 2}], org="o", priority=5)
    found = Job.objects.order_by("id").values_list("id", "payload", "org", "priority")
    assert list(found) == [
        (first, {"n": 0}, "o", 0),
        (more[0], {"n": 1}, "o", 5),
        (more[1], {"n": 2}, "o", 5),
    ]
    with pytest.raises(TypeError, match="colour"):
        kind.enqueue(colour="red")
    with pytest.raises(TypeError, match="colour"):
        kind.enqueue_many([1], colour="red")
