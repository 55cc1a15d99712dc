"""OpenTelemetry: one span for each attempt, in the trace of whoever gave the job (R53, C151)."""

import asyncio
import json
from collections.abc import Callable
from threading import Event
from typing import Any

import pytest
from django.db import transaction
from opentelemetry import trace
from opentelemetry.trace import StatusCode

from gnl_django import JobContext, NewJob, cancel_job, enqueue, enqueue_many
from gnl_django.errors import InvalidPayload, StepInFlight
from gnl_django.models import Job
from tests.conformance.conftest import Declare, FailPoint, MakeWorker
from tests.conformance.helpers import Order, fail, job_of, running, state_of
from tests.support import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.row("queue", "C151")]

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACER = "tests"


def ended(spans: Any, name: str = "queue.runJob") -> list[Any]:
    """Return the spans of attempts that have ended, in their order."""
    return [span for span in spans.get_finished_spans() if span.name == name]


def statuses(spans: Any) -> list[str]:
    return [span.status.status_code.name for span in ended(spans)]


def test_each_attempt_is_a_span_ok_at_success_and_error_at_failure(
    declare: Declare, make_worker: MakeWorker, spans: Any
) -> None:
    def flaky(payload: Any, ctx: JobContext) -> None:
        if ctx.attempt < 3:
            raise ValueError(f"no. {ctx.attempt}")

    job_id = declare("t.flaky", flaky, retry_delay=0, max_attempts=4).enqueue()
    worker = make_worker(name="w")
    assert worker.run_until_idle() == 3
    assert statuses(spans) == ["ERROR", "ERROR", "OK"]
    assert [dict(span.attributes) for span in ended(spans)] == [
        {
            "abs.job.id": job_id,
            "abs.job.kind": "t.flaky",
            "abs.job.attempt": before,
            "abs.job.max_attempts": 4,
            "abs.worker.id": job_of(job_id).worker,
        }
        for before in (0, 1, 2)
    ]
    events = [[dict(e.attributes) for e in span.events] for span in ended(spans)]
    assert [[e["exception.type"] for e in found] for found in events] == [
        ["ValueError"],
        ["ValueError"],
        [],
    ]
    assert events[1][0]["exception.message"] == "no. 2"


def test_a_span_continues_the_trace_of_its_meta(
    declare: Declare, make_worker: MakeWorker, spans: Any
) -> None:
    declare("t.plain").enqueue(meta={"traceparent": PARENT, "other": 1})
    declare("t.rubbish").enqueue(meta={"traceparent": "rubbish"})
    assert make_worker().run_once() == 2
    found = {span.attributes["abs.job.kind"]: span for span in ended(spans)}
    assert f"{found['t.plain'].context.trace_id:032x}" == PARENT[3:35]
    assert f"{found['t.plain'].parent.span_id:016x}" == PARENT[36:52]
    assert found["t.rubbish"].parent is None


def test_whoever_enqueues_inside_a_span_is_the_parent_of_the_attempt(
    declare: Declare, make_worker: MakeWorker, spans: Any
) -> None:
    kind = declare("t.plain")
    with trace.get_tracer(TRACER).start_as_current_span("view"), transaction.atomic():
        one = kind.enqueue(meta={"request": "abc"})
        many = enqueue_many([NewJob(kind), NewJob(kind, meta={"traceparent": PARENT})])
    (view,) = ended(spans, "view")
    meta = job_of(one).meta
    assert meta["request"] == "abc"
    assert meta["traceparent"].split("-")[2] == f"{view.context.span_id:016x}"
    assert make_worker().run_until_idle() == 3
    parents = {
        span.attributes["abs.job.id"]: f"{span.parent.span_id:016x}" for span in ended(spans)
    }
    own = f"{view.context.span_id:016x}"
    assert parents == {one: own, many[0]: own, many[1]: PARENT[36:52]}


def test_outside_of_a_span_nothing_is_added_to_the_meta(
    declare: Declare, make_worker: MakeWorker, spans: Any
) -> None:
    kind = declare("t.plain")
    plain, given = kind.enqueue(), kind.enqueue(meta={"a": 1})
    assert (job_of(plain).meta, job_of(given).meta) == ({}, {"a": 1})


def test_a_meta_that_is_full_is_stored_as_it_was_given(declare: Declare, spans: Any) -> None:
    full = {"a": "x" * (16 * 1024 - len('{"a":""}'))}
    with trace.get_tracer(TRACER).start_as_current_span("view"):
        job_id = declare("t.plain").enqueue(meta=full)
        with pytest.raises(InvalidPayload):
            enqueue("t.plain", meta={"a": full["a"] + "x"})
    assert job_of(job_id).meta == full


def test_what_a_handler_does_stands_below_its_attempt_and_so_do_its_jobs(
    declare: Declare, make_worker: MakeWorker, spans: Any
) -> None:
    child = declare("t.child")

    def handle(payload: Any, ctx: JobContext) -> None:
        with trace.get_tracer(TRACER).start_as_current_span("inside"):
            ctx.enqueue(child)

    async def handle_async(payload: Any, ctx: Any) -> None:
        await asyncio.sleep(0)
        with trace.get_tracer(TRACER).start_as_current_span("inside"):
            await ctx.enqueue(child)

    first = declare("t.sync", handle).enqueue()
    second = declare("t.async", handle_async).enqueue()
    assert make_worker().run_until_idle() == 4
    attempts = {span.attributes["abs.job.id"]: span for span in ended(spans)}
    inside = {span.parent.span_id: span for span in ended(spans, "inside")}
    assert set(inside) == {attempts[job].context.span_id for job in (first, second)}
    born = [span for span in attempts.values() if span.attributes["abs.job.kind"] == "t.child"]
    parents = {span.context.span_id for span in inside.values()}
    assert {span.parent.span_id for span in born} == parents


def test_handlers_that_run_side_by_side_keep_their_spans_apart(
    declare: Declare, make_worker: MakeWorker, spans: Any
) -> None:
    together = asyncio.Event()
    seen: dict[int, str] = {}

    async def handle(payload: int, ctx: Any) -> None:
        if len(seen) == 1:
            together.set()
        seen[ctx.job_id] = ""
        await together.wait()
        seen[ctx.job_id] = f"{trace.get_current_span().get_span_context().span_id:016x}"

    kind = declare("t.async", handle)
    kind.enqueue(1)
    kind.enqueue(2)
    assert make_worker().run_once() == 2
    found = {s.attributes["abs.job.id"]: f"{s.context.span_id:016x}" for s in ended(spans)}
    assert found == seen


def test_an_invalid_payload_leaves_the_status_unset(
    declare: Declare, make_worker: MakeWorker, spans: Any
) -> None:
    def typed(payload: Order) -> None:
        raise AssertionError("never called")

    job_id = declare("t.typed").enqueue({"number": "seven"})
    declare("t.typed", typed)
    assert make_worker().run_once() == 1
    assert state_of(job_id) == "dead"
    (span,) = ended(spans)
    assert span.status.status_code is StatusCode.UNSET
    assert not span.events


def _overwrite(job_id: int) -> None:
    running(job_id)


def _cancel(job_id: int) -> None:
    cancel_job(job_id)


def _defer(job_id: int) -> None:
    raise StepInFlight("pay", 1.0, 60, 59.0)


@pytest.mark.parametrize(
    ("act", "state"), [(_overwrite, "running"), (_cancel, "canceled"), (_defer, "scheduled")]
)
def test_lost_canceled_and_deferred_attempts_leave_it_unset_too(
    act: Callable[[int], None],
    state: str,
    declare: Declare,
    make_worker: MakeWorker,
    spans: Any,
) -> None:
    job_id = declare("t.act", lambda payload, ctx: act(ctx.job_id)).enqueue()
    assert make_worker().run_once() == 1
    assert state_of(job_id) == state
    assert statuses(spans) == ["UNSET"]


def test_a_timeout_is_an_error(declare: Declare, make_worker: MakeWorker, spans: Any) -> None:
    def slow(payload: Any, ctx: JobContext) -> None:
        assert ctx.signal.wait(20)

    declare("t.slow", slow, max_hold=0.02, max_attempts=1).enqueue()
    assert make_worker().run_once() == 1
    (span,) = ended(spans)
    assert span.status.status_code is StatusCode.ERROR
    assert span.events[0].attributes["exception.type"].endswith("ExecutionRevoked")


def test_a_job_given_back_at_the_stop_ends_its_span_while_the_handler_still_runs(
    declare: Declare, make_worker: MakeWorker, spans: Any
) -> None:
    began, free, returned = Event(), Event(), Event()

    def deaf(payload: Any, ctx: JobContext) -> None:
        began.set()
        assert free.wait(20)
        returned.set()

    job_id = declare("t.deaf", deaf).enqueue()
    worker = make_worker()
    worker.start()
    assert began.wait(20)
    assert not worker.stop(0)
    assert state_of(job_id) == "ready"
    assert statuses(spans) == ["UNSET"]
    free.set()
    assert returned.wait(20)
    assert statuses(spans) == ["UNSET"]


def test_the_status_is_known_only_when_the_outcome_is_written(
    declare: Declare, make_worker: MakeWorker, spans: Any, failpoint: FailPoint
) -> None:
    before: list[int] = []
    failpoint("complete.updated", lambda: before.append(len(ended(spans))))
    declare("t.plain").enqueue()
    assert make_worker().run_once() == 1
    assert before == [0]
    assert statuses(spans) == ["OK"]


def test_a_job_run_inside_a_test_case_has_its_span_too(
    declare: Declare, make_worker: MakeWorker, spans: Any
) -> None:
    with transaction.atomic():
        declare("t.plain").enqueue()
        declare("t.fails", fail, max_attempts=1).enqueue()
        assert make_worker().run_once() == 2
        assert sorted(statuses(spans)) == ["ERROR", "OK"]
        transaction.set_rollback(True)


def test_no_span_holds_a_payload_or_a_result(
    declare: Declare, make_worker: MakeWorker, spans: Any
) -> None:
    declare("t.plain", lambda payload: {"got": payload}).enqueue(
        ["marker-in"], meta={"m": "marker"}
    )
    assert make_worker().run_once() == 1
    texts = json.dumps([json.loads(span.to_json()) for span in spans.get_finished_spans()])
    assert "marker" not in texts


def test_a_started_worker_traces_from_the_moment_a_provider_is_set(
    declare: Declare, make_worker: MakeWorker, request: pytest.FixtureRequest
) -> None:
    kind = declare("t.plain")
    worker = make_worker()
    worker.start()
    kind.enqueue()
    wait_until(lambda: Job.objects.filter(state="succeeded").count() == 1, 20)
    spans = request.getfixturevalue("spans")
    kind.enqueue()
    wait_until(lambda: statuses(spans) == ["OK"], 20)
    assert worker.stop(20)
