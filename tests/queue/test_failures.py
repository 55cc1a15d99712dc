"""Failures as they are stored: class, text, traceback, and the key that groups them."""

import json
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnl_django import InvalidPayload
from gnl_django.core import clock
from gnl_django.core.db import now
from gnl_django.errors import PayloadIssue
from gnl_django.queue import failures
from gnl_django.queue.error_keys import error_key
from gnl_django.queue.store import store_for
from tests.conformance.conftest import Declare
from tests.conformance.helpers import job_of, running


def project_code(line: int, statement: str, module: str = "shop.mail") -> Callable[[], object]:
    """Return a function `send` of a project's file that does `statement` in that line."""
    source = "\n" * (line - 2) + f"def send():\n    {statement}\n"
    names: dict[str, Any] = {"__name__": module}
    exec(compile(source, "/srv/shop/mail.py", "exec"), names)  # noqa: S102 - made above
    return names["send"]  # type: ignore[no-any-return]


def raised(call: Callable[[], object]) -> BaseException:
    """Return what `call` raises, with a traceback that begins in `call`."""
    try:
        call()
    except BaseException as error:  # noqa: BLE001 - whatever it is
        trace = error.__traceback__
        assert isinstance(trace, TracebackType)
        return error.with_traceback(trace.tb_next)
    raise AssertionError("nothing was raised")


def described(statement: str, *, line: int = 31, kind: str = "mail.send") -> failures.Failure:
    return failures.describe(kind, raised(project_code(line, statement)))


def test_the_key_is_that_of_the_specifications_example() -> None:
    found = described("raise ConnectionError('no route to 10.0.0.5')")
    assert found.error_class == "builtins.ConnectionError"
    assert found.error_key == "fb8badc240523be4"
    assert error_key("mail.send", "builtins.ConnectionError", "shop.mail:send:31") == (
        "fb8badc240523be4"
    )


def test_the_key_of_an_expired_lease_has_no_place() -> None:
    assert error_key("mail.send", "gnl_django.errors.LeaseExpired") == "dd4c34ddc6e7f896"


@pytest.mark.django_db
@pytest.mark.row("studio", "C35")
def test_reaped_jobs_have_the_key_of_an_expired_lease_on_every_database(declare: Declare) -> None:
    job_id = declare("mail.send").enqueue()
    running(job_id)
    with clock.override(now("default") + timedelta(hours=2)):
        store_for("default").reap()
    job = job_of(job_id)
    assert job.error_class == "gnl_django.errors.LeaseExpired"
    assert job.error_key == "dd4c34ddc6e7f896"


@pytest.mark.row("studio", "C34")
def test_the_message_plays_no_part_in_the_key_but_line_and_kind_do() -> None:
    one = described("raise ValueError('order 17 is late')")
    other = described("raise ValueError('order 4711 is late')")
    assert one.error != other.error
    assert one.error_key == other.error_key
    assert described("raise ValueError('order 17 is late')", line=32).error_key != one.error_key
    assert described("raise ValueError('x')", kind="mail.read").error_key != one.error_key
    assert described("raise KeyError('x')").error_key != one.error_key


@pytest.mark.row("studio", "C35")
def test_library_frames_are_passed_over_for_the_deepest_line_of_the_project() -> None:
    error = raised(project_code(8, "__import__('json').loads('{')"))
    assert failures.place_of(error) == "shop.mail:send:8"


@pytest.mark.row("studio", "C35")
def test_an_error_in_library_frames_only_has_no_place_and_a_stable_key() -> None:
    errors = [raised(partial(json.loads, text)) for text in ("{", "[1,")]
    assert [failures.place_of(error) for error in errors] == ["", ""]
    keys = {failures.describe("k", error).error_key for error in errors}
    assert keys == {error_key("k", "json.decoder.JSONDecodeError")}


def test_an_error_that_was_never_raised_has_no_place() -> None:
    found = failures.describe("k", ValueError("no"))
    assert found.error_key == error_key("k", "builtins.ValueError")
    assert found.traceback == "ValueError: no\n"


@pytest.mark.row("studio", "C35")
def test_the_place_of_an_invalid_payload_is_the_path_of_its_first_issue() -> None:
    error = InvalidPayload("k", [PayloadIssue("/a/0", "one"), PayloadIssue("/b", "two")])
    assert failures.place_of(error) == "/a/0"
    key = failures.describe("k", error).error_key
    assert key == error_key("k", "gnl_django.errors.InvalidPayload", "/a/0")
    assert failures.place_of(InvalidPayload("k", [])) == ""


def test_the_text_names_the_class_and_the_message() -> None:
    assert described("raise ValueError('no')").error == "ValueError: no"
    assert described("raise ValueError").error == "ValueError: "
    assert described("raise KeyError('k')").error == "KeyError: 'k'"


def test_the_class_is_a_full_dotted_path_that_fits_its_column() -> None:
    class Inner(Exception):
        pass

    assert failures.class_path(ValueError()) == "builtins.ValueError"
    assert failures.class_path(Inner()) == f"{__name__}.{Inner.__qualname__}"
    long = type("E" * 300, (Exception,), {"__module__": "m"})
    assert failures.class_path(long()) == ("m." + "E" * 300)[:255]


def test_the_traceback_shows_the_code_and_no_values_of_variables() -> None:
    def handle(password: str) -> None:
        raise ValueError("no")

    found = failures.describe("k", raised(lambda: handle("hunter2")))
    assert 'raise ValueError("no")' in found.traceback
    assert found.traceback.rstrip().endswith("ValueError: no")
    assert found.traceback.count("hunter2") == 1  # the text of the call, not a value


def test_a_cause_is_shown_before_what_it_caused() -> None:
    statement = "exec('try:\\n 1 / 0\\nexcept Exception as e:\\n raise ValueError(1) from e')"
    text = described(statement).traceback
    assert (
        text.index("ZeroDivisionError") < text.index("direct cause") < text.index("ValueError: 1")
    )


def test_a_long_traceback_keeps_both_ends() -> None:
    message = "m" * 100_000
    error = raised(project_code(31, f"raise ValueError('{message}')"))
    error.add_note("the last line")
    text = failures.describe("k", error).traceback
    assert len(text.encode()) <= 32 * 1024
    assert text.startswith("Traceback")
    assert "/srv/shop/mail.py" in text
    assert text.rstrip().endswith("the last line")


def test_a_deep_recursion_is_told_in_bounds() -> None:
    def deeper(n: int) -> int:
        return deeper(n + 1)

    found = failures.describe("k", raised(lambda: deeper(0)))
    assert found.error_class == "builtins.RecursionError"
    assert len(found.traceback.encode()) <= 32 * 1024
    assert "deeper" in found.traceback


@given(st.text(max_size=50))
def test_every_message_gives_a_text_that_can_be_stored(message: str) -> None:
    found = failures.describe("k", ValueError(message * 400))
    for text, most in ((found.error, 8 * 1024), (found.traceback, 32 * 1024)):
        assert len(text.encode()) <= most
        assert "\0" not in text


class Broken(Exception):
    """An exception none of whose texts can be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __repr__(self) -> str:
        raise RuntimeError("no form")


def test_an_exception_without_readable_text_is_described_all_the_same() -> None:
    def handle() -> None:
        raise Broken

    found = failures.describe("k", raised(handle))
    assert found.error.startswith("Broken: ")
    assert len(found.error_key) == 16
    assert "raise Broken" in found.traceback
