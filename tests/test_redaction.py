"""gnl_django.redaction: what is hidden, from whom, and that hostile values cost nothing."""

from collections.abc import Iterator
from typing import Any

import pytest

from gnl_django import job
from gnl_django.queue.options import kinds
from gnl_django.redaction import HIDDEN, SENSITIVE, redact, redact_keys


@pytest.fixture
def diagnosis() -> Iterator[str]:
    """Declare a sensitive kind."""

    @job("clinic.diagnosis", sensitive=True)
    def diagnose(payload: dict[str, object]) -> None:
        raise AssertionError("never run here")

    yield diagnose.kind
    kinds.forget(diagnose.kind)


def add_note(kind: str, value: Any) -> Any:
    """A project's hook."""
    return {**value, "shown as": kind}


def break_down(kind: str, value: Any) -> Any:
    """A project's hook with a fault."""
    raise LookupError(value)


@pytest.mark.row("security", "D7")
def test_values_of_secret_keys_are_hidden_at_any_depth() -> None:
    payload = {"to": "a@b.c", "auth": {"apiKey": "k1"}, "items": [{"Password": "x", "n": 1}]}

    assert redact("mail.send", payload) == {
        "to": "a@b.c",
        "auth": {"apiKey": "***"},
        "items": [{"Password": "***", "n": 1}],
    }
    assert payload["auth"] == {"apiKey": "k1"}, "the value given is not touched"


@pytest.mark.parametrize(
    "key",
    [
        "password",
        "PASSWD",
        "clientSecret",
        "token",
        "Authorization",
        "set-cookie",
        "API-KEY",
        "api_key",
        "apiKey",
        "access-key",
        "PRIVATE_KEY",
        "credentials",
        "sessionid",
    ],
)
@pytest.mark.row("security", "D7")
def test_a_secret_key_is_known_in_every_spelling(key: str) -> None:
    assert redact("k", {key: {"deep": [1, 2]}}) == {key: HIDDEN}


def test_other_values_stay_as_they_are() -> None:
    value = [None, True, 1.5, "password=hunter2", {"monkey": "see"}, []]

    assert redact("k", value) == value
    assert redact("k", "token") == "token"
    assert redact("k", None) is None


@pytest.mark.row("security", "D7")
def test_a_sensitive_kind_is_hidden_whole(diagnosis: str) -> None:
    assert redact(diagnosis, {"finding": "x"}) == SENSITIVE == "*** (sensitive)"
    assert redact(diagnosis, None) == SENSITIVE


def test_a_row_that_says_it_is_sensitive_is_hidden_whatever_its_kind() -> None:
    assert redact("unknown.kind", {"finding": "x"}, sensitive=True) == SENSITIVE


def test_who_may_see_sensitive_values_still_sees_no_secret(diagnosis: str) -> None:
    assert redact_keys(diagnosis, {"finding": "x", "token": "t"}) == {
        "finding": "x",
        "token": HIDDEN,
    }


def test_the_pattern_and_the_hook_are_the_projects(settings: Any) -> None:
    settings.GNL = {"REDACT_KEYS": "iban", "REDACT": f"{__name__}.add_note"}

    assert redact("pay", {"IBAN": "DE02", "token": "t"}) == {
        "IBAN": HIDDEN,
        "token": "t",
        "shown as": "pay",
    }


def test_a_hook_that_fails_hides_the_value_and_keeps_it_out_of_the_log(
    settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings.GNL = {"REDACT": f"{__name__}.break_down"}

    assert redact("pay", {"n": "a-marker"}) == HIDDEN
    settings.GNL = {"REDACT": "no.such.module"}
    assert redact("pay", {"n": "a-marker"}) == HIDDEN
    settings.GNL = {"REDACT_KEYS": "(unclosed"}
    assert redact("pay", {"n": "a-marker"}) == HIDDEN
    assert "Redaction failed (LookupError)" in caplog.text
    assert "a-marker" not in caplog.text


@pytest.mark.row("security", "N8")
def test_a_megabyte_of_key_or_value_is_looked_at_in_no_time(settings: Any) -> None:
    settings.GNL = {"REDACT_KEYS": "(?:(?:p|a|s)+)+!"}  # a search for it would not end today
    big = "pass" * 250_000

    found = redact("k", {big: "hidden, for the key is too long to search", "text": big})

    assert found == {big: HIDDEN, "text": big}


def test_a_value_nested_deeper_than_we_store_is_hidden_below_that_depth() -> None:
    value: Any = "core"
    for _ in range(5_000):
        value = [value]

    found = redact("k", value)

    depth = 0
    while isinstance(found, list):
        found, depth = found[0], depth + 1
    assert (found, depth) == (HIDDEN, 64)
