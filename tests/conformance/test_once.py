"""A handler run once, without a job: it sees what a worker would show it; nothing is written."""

import json
import subprocess
import sys
from typing import Any
from uuid import UUID

import pytest

from gnl_django import (
    ExecutionRevoked,
    InvalidPayload,
    JobContext,
    PermanentFailure,
    UnknownKind,
    run_handler_once,
)
from gnl_django.core.revocation import Revocation
from gnl_django.models import Attempt, Job
from tests.conformance.conftest import Declare
from tests.conformance.helpers import Badge, Order, statements
from tests.procs import ROOT

pytestmark = [pytest.mark.django_db, pytest.mark.row("queue", "C150")]


def test_the_handler_gets_payload_and_a_context_of_its_own(declare: Declare) -> None:
    seen: list[Any] = []

    def handle(payload: Any, ctx: JobContext) -> str:
        seen.append((payload, ctx))
        return "done"

    kind = declare("t.seen", handle, queue="slow", max_attempts=7)
    with statements() as texts:
        assert run_handler_once("t.seen", {"a": 1}) == "done"
        assert kind.run_once({"a": 1}) == "done"
    assert texts == []
    (payload, ctx), (_, other) = seen
    assert payload == {"a": 1}
    assert (ctx.job_id, ctx.kind, ctx.org, ctx.queue) == (None, "t.seen", None, "slow")
    assert (ctx.attempt, ctx.max_attempts, ctx.meta, ctx.scheduled_for) == (1, 1, {}, None)
    assert not ctx.signal.revoked
    prefix, _, digits = ctx.run_id.partition(":")
    assert (prefix, len(digits)) == ("once", 32)
    assert ctx.run_id != other.run_id
    assert ctx.claim_token != other.claim_token


def test_any_field_of_the_context_may_be_given(declare: Declare) -> None:
    def handle(payload: Any, ctx: JobContext) -> Any:
        ctx.signal.raise_if_revoked()
        return ctx.org, ctx.attempt, ctx.run_id, dict(ctx.meta)

    kind = declare("t.seen", handle)
    given = {"org": "acme", "attempt": 3, "run_id": "job:5", "meta": {"m": 1}}
    assert kind.run_once(context=given) == ("acme", 3, "job:5", {"m": 1})
    signal = Revocation()
    signal.revoke("canceled")
    with pytest.raises(ExecutionRevoked):
        kind.run_once(context={"signal": signal})
    with pytest.raises(TypeError, match="JobContext has no orgs, tries"):
        kind.run_once(context={"tries": 1, "orgs": 1, "org": "a"})


def test_a_kind_without_handler_is_refused() -> None:
    with pytest.raises(UnknownKind, match="no handler registered"):
        run_handler_once("t.nobody", {})


def test_the_payload_is_checked_and_takes_its_way_through_json(declare: Declare) -> None:
    badge = "12345678-1234-5678-1234-567812345678"
    seen: list[object] = []

    def handle(payload: Badge) -> None:
        seen.append(payload.badge)

    kind = declare("t.badge", handle)
    kind.run_once({"badge": badge})
    kind.run_once(Badge(badge=UUID(badge)))
    assert seen == [UUID(badge)] * 2
    with pytest.raises(InvalidPayload) as refused:
        kind.run_once({"badge": "x"})
    assert refused.value.issues[0].path == "/badge"
    for wrong in ({"a": float("nan")}, {1: 2}, "\ud800"):
        with pytest.raises(InvalidPayload):
            declare("t.plain").run_once(wrong)
    assert len(seen) == 2


def test_without_the_check_the_payload_is_handed_over_as_it_is(declare: Declare) -> None:
    seen: list[object] = []

    def handle(payload: Order) -> None:
        seen.append(payload)

    given = object()
    declare("t.order", handle).run_once(given, validate=False)
    assert seen == [given]


def test_what_the_handler_raises_comes_out_as_it_is(declare: Declare) -> None:
    calls = []

    def handle(payload: Any) -> None:
        calls.append(payload)
        raise payload

    kind = declare("t.raises", handle)
    for error in (ValueError("no"), PermanentFailure("no"), SystemExit(3)):
        with pytest.raises(type(error)) as raised:
            kind.run_once(error, validate=False)
        assert raised.value is error
    assert len(calls) == 3
    assert not Job.objects.exists()
    assert not Attempt.objects.exists()


def test_an_async_handler_is_run_to_its_end(declare: Declare) -> None:
    async def handle(payload: Any, ctx: JobContext) -> Any:
        return payload, ctx.org

    assert declare("t.async", handle).run_once(5, {"org": "a"}) == (5, "a")


@pytest.mark.django_db(transaction=True)
def test_jobs_that_the_handler_enqueues_are_stored_with_the_given_org(declare: Declare) -> None:
    def handle(payload: Any, ctx: JobContext) -> int:
        return ctx.enqueue("t.seen", {"child": True})

    kind = declare("t.seen", handle)
    job_id = kind.run_once(context={"org": "acme"})
    assert Job.objects.get(id=job_id).org == "acme"


@pytest.mark.sqlite("one database is enough to import a module")
def test_importing_the_package_and_its_handlers_starts_no_thread_and_no_connection() -> None:
    script = (
        "import django, threading, json; django.setup(); import gnl_django; "
        "from gnl_django import enqueue, Worker, list_jobs, run_handler_once; "
        "import tests.app.background; from django.db import connections; "
        "print(json.dumps([run_handler_once('tests.quick', 5), threading.active_count(), "
        "[c.connection is not None for c in connections.all()]]))"
    )
    import os

    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        check=True,
        timeout=60,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"},
    )
    assert json.loads(done.stdout) == [5, 1, [False]]
