"""job_enqueued and job_started: after the commit, once a job, and harmless whoever listens."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connections, transaction
from django.dispatch import Signal

from gnl_django import JobContext, JobKind, NewJob, enqueue_many
from gnl_django.core import failpoints
from gnl_django.models import Job
from gnl_django.signals import job_enqueued, job_finished, job_started
from tests.conformance.conftest import Aside, Declare, MakeWorker
from tests.conformance.helpers import Badge, fail, state_of, statements
from tests.conformance.support_claim import Gate
from tests.support import vendor

pytestmark = pytest.mark.django_db(transaction=True)

Kind = JobKind[Any]
Sent = list[dict[str, Any]]
Listen = Callable[[Signal], Sent]


@pytest.fixture
def listen() -> Iterator[Listen]:
    """Collect what a signal sends: `sent = listen(job_started)`."""
    connected = []

    def start(signal: Signal) -> Sent:
        sent: Sent = []

        def receive(sender: object, *, signal: object, **values: Any) -> None:
            sent.append(values)

        signal.connect(receive, weak=False)
        connected.append((signal, receive))
        return sent

    yield start
    for signal, receive in connected:
        signal.disconnect(receive)


def test_each_new_job_is_told_once_after_the_commit(kind: Kind, listen: Listen) -> None:
    sent = listen(job_enqueued)
    with transaction.atomic():
        first = kind.enqueue(org="acme", queue="slow")
        later = kind.enqueue(delay=60)
        assert sent == []
    assert sent == [
        {"job_id": first, "kind": "t.plain", "queue": "slow", "org": "acme"},
        {"job_id": later, "kind": "t.plain", "queue": "default", "org": None},
    ]


def test_what_is_rolled_back_is_not_told(kind: Kind, listen: Listen) -> None:
    sent = listen(job_enqueued)
    with transaction.atomic():
        kept = kind.enqueue()
        with transaction.atomic():
            kind.enqueue()
            transaction.set_rollback(True)
    assert [values["job_id"] for values in sent] == [kept]


def test_a_key_that_leads_to_a_stored_job_tells_nothing(kind: Kind, listen: Listen) -> None:
    sent = listen(job_enqueued)
    first = kind.enqueue(key="k")
    assert kind.enqueue(key="k") == first
    assert kind.enqueue(key="k", max_depth=5) == first
    ids = enqueue_many(
        [NewJob(kind, key=key) for key in ("k", "new", "new", None, "k")]  # type: ignore[arg-type]
    )
    assert ids[0] == ids[4] == first
    assert [values["job_id"] for values in sent] == [first, ids[1], ids[3]]
    assert len(set(ids)) == 3


@pytest.mark.mysql("SQLite has one writer")
@pytest.mark.postgres("SQLite has one writer")
def test_of_two_callers_of_one_key_at_once_the_one_that_stores_tells(
    kind: Kind, listen: Listen, aside: Aside
) -> None:
    sent = listen(job_enqueued)
    gate = Gate()

    def first_caller() -> int:
        with transaction.atomic():
            job_id = kind.enqueue(key="k")
            gate()
            return job_id

    first = aside(first_caller)
    gate.wait_reached()
    second = aside(lambda: kind.enqueue(key="k"))
    assert not second.ends_within(0.1)
    gate.open()
    assert first.result() == second.result()
    assert [values["job_id"] for values in sent] == [first.result()]


def test_nobody_listening_costs_no_statement_and_no_callback(kind: Kind) -> None:
    with statements() as texts, transaction.atomic():
        before = len(connections["default"].run_on_commit)
        kind.enqueue()
        # The one that wakes the workers of this process.
        assert len(connections["default"].run_on_commit) == before + 1
    assert len([text for text in texts if "gnl_django_job" in text]) == 1
    assert not failpoints.armed()


def test_a_handlers_start_is_told_each_attempt_in_front_of_it(
    declare: Declare, make_worker: MakeWorker, listen: Listen
) -> None:
    order: list[object] = []

    def handle(payload: Any, ctx: JobContext) -> None:
        order.append("runs")
        fail(payload)

    def note(sender: object, **values: Any) -> None:
        assert state_of(values["job_id"]) == "running"
        order.append(values["attempt"])

    sent = listen(job_started)
    job_started.connect(note)
    kind = declare("t.fails", handle, max_attempts=2, retry_delay=0)
    job_id = kind.enqueue(org="acme")
    make_worker().run_until_idle()
    job_started.disconnect(note)
    assert order == [1, "runs", 2, "runs"]
    assert sent == [
        {"job_id": job_id, "kind": "t.fails", "org": "acme", "attempt": attempt}
        for attempt in (1, 2)
    ]


def test_the_start_of_an_async_handler_is_told_where_the_database_may_be_asked(
    declare: Declare, make_worker: MakeWorker, listen: Listen
) -> None:
    states: list[str] = []

    def note(sender: object, **values: Any) -> None:
        states.append(state_of(values["job_id"]))

    async def handle(payload: Any) -> None:
        states.append("runs")

    job_id = declare("t.async", handle).enqueue()
    sent = listen(job_started)
    job_started.connect(note)
    make_worker().run_once()
    job_started.disconnect(note)
    assert states == ["running", "runs"]
    assert [values["job_id"] for values in sent] == [job_id]


def test_an_attempt_whose_payload_no_longer_fits_has_started_too(
    declare: Declare, make_worker: MakeWorker, listen: Listen
) -> None:
    def handle(payload: Badge) -> None:
        raise AssertionError("is not called")

    kind = declare("t.badge", handle)
    job_id = kind.enqueue({"badge": "12345678-1234-5678-1234-567812345678"})
    Job.objects.filter(id=job_id).update(payload={})
    sent, ended = listen(job_started), listen(job_finished)
    make_worker().run_once()
    assert [values["job_id"] for values in sent + ended] == [job_id, job_id]


@pytest.mark.parametrize("signal", [job_enqueued, job_started])
def test_a_receiver_that_fails_is_logged_and_harms_nobody(
    kind: Kind,
    make_worker: MakeWorker,
    listen: Listen,
    caplog: pytest.LogCaptureFixture,
    signal: Signal,
) -> None:
    def broken(sender: object, **values: Any) -> None:
        raise LookupError("a broken receiver")

    signal.connect(broken)
    try:
        sent = listen(signal)
        ids = kind.enqueue_many(range(3))
        make_worker().run_until_idle()
    finally:
        signal.disconnect(broken)
    assert [state_of(job_id) for job_id in ids] == ["succeeded"] * 3
    assert sorted(values["job_id"] for values in sent) == ids
    assert "a broken receiver" in caplog.text
    assert vendor()
