"""`gnl_run_handler`: the handler's answer on standard output, refusals as exit code 1."""

import json
import logging
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from gnl_django import JobContext
from tests.conformance.conftest import Declare
from tests.conformance.helpers import Order

pytestmark = [pytest.mark.django_db, pytest.mark.row("queue", "C150")]


def run(*arguments: str) -> str:
    """Run the command; return what it printed."""
    out = StringIO()
    call_command("gnl_run_handler", *arguments, stdout=out)
    return out.getvalue().strip()


def test_it_prints_what_the_handler_returned_as_json(declare: Declare) -> None:
    def handle(payload: Any, ctx: JobContext) -> Any:
        return {"org": ctx.org, "payload": payload}

    declare("t.echo", handle)
    assert json.loads(run("t.echo", "--payload", '{"a": "ä"}', "--org", "acme")) == {
        "org": "acme",
        "payload": {"a": "ä"},
    }
    assert json.loads(run("t.echo")) == {"org": None, "payload": None}


def test_a_value_that_is_no_json_is_shown_as_python_shows_it(declare: Declare) -> None:
    declare("t.set", lambda payload: {payload})
    assert run("t.set", "--payload", "1") == "{1}"


def test_refusals_name_their_reason(declare: Declare) -> None:
    def handle(payload: Order) -> str:
        return str(payload)

    declare("t.order", handle)
    with pytest.raises(CommandError, match="no handler registered"):
        run("t.nobody")
    with pytest.raises(CommandError, match="--payload is no JSON"):
        run("t.order", "--payload", "{")
    with pytest.raises(CommandError, match="/number"):
        run("t.order", "--payload", "{}")
    assert run("t.order", "--payload", "{}", "--no-validate") == '"{}"'


def test_what_the_handler_raises_is_not_hidden(declare: Declare) -> None:
    def handle(payload: Any) -> None:
        raise LookupError("gone")

    declare("t.raises", handle)
    with pytest.raises(LookupError, match="gone"):
        run("t.raises")


def test_the_audit_log_names_who_and_what_but_never_the_payload(
    declare: Declare,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOGNAME", "ada")
    declare("t.plain")
    with caplog.at_level(logging.INFO, "gnl_django.audit"):
        run("t.plain", "--payload", '"a secret"')
    (record,) = [r for r in caplog.records if r.name == "gnl_django.audit"]
    assert record.getMessage() == "run handler by 'ada' at the command line: t.plain"
