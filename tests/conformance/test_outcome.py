"""Outcomes: what success, failure and deferral leave in the row, and what they never break."""

import asyncio
import logging
import math
import os
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

import pytest
from django.db import connection, connections, transaction

from gnl_django import JobContext, PermanentFailure, Worker, enqueue
from gnl_django.core import clock
from gnl_django.errors import InvalidPayload, RunBusy, StepInFlight
from gnl_django.models import Attempt, Job, QueueState
from gnl_django.queue.listing import JobSummary
from tests.conformance.conftest import NOON, Declare, MakeWorker
from tests.conformance.helpers import Order, attempts_of, fail, job_of, outcomes_of, state_of
from tests.support import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

Told = list[tuple[BaseException, JobSummary | None]]


@pytest.fixture
def told() -> Told:
    """Collect what on_error is given: `make_worker(on_error=tell(told))`."""
    return []


def tell(told: Told) -> Any:
    return lambda error, job: told.append((error, job))


@pytest.mark.row("queue", "C94")
def test_a_job_that_always_fails_is_dead_after_its_attempts(
    declare: Declare, make_worker: MakeWorker, told: Told
) -> None:
    calls: list[int] = []

    def handle(payload: Any, ctx: JobContext) -> NoReturn:
        calls.append(ctx.attempt)
        raise ValueError(f"no. {ctx.attempt}")

    kind = declare("t.fails", handle, max_attempts=3, retry_delay=0)
    job_id = kind.enqueue(org="acme")
    worker = make_worker(on_error=tell(told), name="w")
    assert worker.run_until_idle() == 3
    assert calls == [1, 2, 3]
    job = job_of(job_id)
    assert (job.state, job.attempt, job.max_attempts) == ("dead", 3, 3)
    assert (job.error_class, job.error) == ("builtins.ValueError", "ValueError: no. 3")
    assert job.error_key is not None
    assert job.finished_at is not None
    assert (job.claim_token, job.lease_expires_at) == (None, None)
    rows = attempts_of(job_id)
    assert [(row.number, row.revival, row.outcome) for row in rows] == [
        (number, 0, "failed") for number in (1, 2, 3)
    ]
    assert [row.message for row in rows] == [f"ValueError: no. {number}" for number in (1, 2, 3)]
    assert {row.error_class for row in rows} == {"builtins.ValueError"}
    assert {row.worker for row in rows} == {job.worker}
    assert re.fullmatch(rf"w/[^/]+/{os.getpid()}/[0-9a-f]{{6}}", job.worker or "")
    assert len({row.claim_token for row in rows}) == 3
    assert all(row.started_at <= row.finished_at for row in rows)
    assert 'raise ValueError(f"no. {ctx.attempt}")' in rows[0].traceback
    assert [(str(error), job and (job.id, job.org, job.attempt)) for error, job in told] == [
        (f"no. {number}", (job_id, "acme", number)) for number in (1, 2, 3)
    ]


@pytest.mark.row("queue", "C95")
def test_the_default_delays_double_from_one_second_to_three_hundred(
    declare: Declare, make_worker: MakeWorker, frozen: clock.Override
) -> None:
    job_id = declare("t.fails", fail, max_attempts=12).enqueue()
    worker = make_worker()
    delays = []
    now = NOON
    for _ in range(11):
        assert worker.run_once() == 1
        job = job_of(job_id)
        assert job.state == "scheduled"
        delays.append((job.run_at - now).total_seconds())
        frozen.set(job.run_at - timedelta(milliseconds=1))
        assert worker.run_once() == 0
        now = job.run_at
        frozen.set(now)
    assert delays == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    assert worker.run_once() == 1
    assert state_of(job_id) == "dead"


@pytest.mark.row("queue", "C95")
def test_a_job_with_the_defaults_starts_five_times_within_fifteen_seconds(
    declare: Declare, make_worker: MakeWorker, frozen: clock.Override
) -> None:
    job_id = declare("t.fails", fail).enqueue()
    worker = make_worker()
    starts = []
    while state_of(job_id) != "dead":
        frozen.set(job_of(job_id).run_at)
        assert worker.run_once() == 1
        started_at = job_of(job_id).started_at
        assert started_at is not None
        starts.append((started_at - NOON).total_seconds())
    assert starts == [0, 1, 3, 7, 15]


def delays_of(
    job_id: int, worker: Worker, frozen: clock.Override, attempts: int
) -> list[float | str]:
    """Run a failing job; return its delay after each attempt, or its state when it has none."""
    found: list[float | str] = []
    now = NOON
    for _ in range(attempts):
        assert worker.run_once() == 1
        job = job_of(job_id)
        delay = (job.run_at - now).total_seconds()
        found.append(delay if job.state == "scheduled" else job.state)
        now = job.run_at
        frozen.set(now)
    return found


@pytest.mark.row("queue", "C96")
@pytest.mark.parametrize(
    ("retry_delay", "expected"),
    [
        (7, [7, 7, 7]),
        (0.25, [0.25, 0.25, 0.25]),
        (timedelta(minutes=3), [180, 180, 180]),
        (0, ["ready", "ready", "ready"]),
        ([5, timedelta(seconds=6)], [5, 6, 6]),
        ((9, 0), [9, "ready", "ready"]),
        (lambda attempt, error: attempt * 10, [10, 20, 30]),
        (lambda attempt, error: timedelta(seconds=len(str(error))), [2, 2, 2]),
        (None, [1, 2, 4]),
    ],
)
def test_the_kinds_delay_is_kept_to_the_microsecond(
    declare: Declare,
    make_worker: MakeWorker,
    frozen: clock.Override,
    caplog: pytest.LogCaptureFixture,
    retry_delay: Any,
    expected: list[float | str],
) -> None:
    job_id = declare("t.fails", fail, retry_delay=retry_delay).enqueue()
    assert delays_of(job_id, make_worker(), frozen, 3) == expected
    assert not caplog.records


def _raise(attempt: int, error: BaseException) -> NoReturn:
    raise RuntimeError("this delay cannot be told")


@pytest.mark.row("queue", "C96")
@pytest.mark.parametrize(
    "retry_delay",
    [
        pytest.param(_raise, id="raises"),
        pytest.param(lambda attempt, error: math.nan, id="nan"),
        pytest.param(lambda attempt, error: math.inf, id="inf"),
        pytest.param(lambda attempt, error: -1, id="negative"),
        pytest.param(lambda attempt, error: "5", id="text"),
        pytest.param(lambda attempt, error: True, id="bool"),
        pytest.param(lambda attempt, error: None, id="None"),
        pytest.param(lambda attempt: 5, id="one parameter"),
        pytest.param(lambda attempt, error: 1e300, id="beyond the calendar"),
    ],
)
def test_a_delay_that_is_none_gives_way_to_the_default_with_one_warning(
    declare: Declare,
    make_worker: MakeWorker,
    frozen: clock.Override,
    caplog: pytest.LogCaptureFixture,
    retry_delay: Any,
) -> None:
    job_id = declare("t.fails", fail, retry_delay=retry_delay).enqueue()
    worker = make_worker()
    assert delays_of(job_id, worker, frozen, 1) == [1]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "t.fails" in caplog.text
    assert delays_of(job_id, worker, frozen, 1)
    assert len(caplog.records) == 2


@pytest.mark.row("queue", "C97")
def test_a_permanent_failure_is_dead_at_once(
    declare: Declare, make_worker: MakeWorker, told: Told
) -> None:
    class Hopeless(PermanentFailure):
        """A user's own."""

    def handle(payload: Any) -> NoReturn:
        raise Hopeless("never again")

    job_id = declare("t.hopeless", handle, max_attempts=5).enqueue()
    worker = make_worker(on_error=tell(told))
    assert worker.run_until_idle() == 1
    job = job_of(job_id)
    assert (job.state, job.attempt, job.error) == ("dead", 1, "Hopeless: never again")
    assert job.error_class == f"{__name__}.{Hopeless.__qualname__}"
    assert outcomes_of(job_id) == ["failed"]
    assert len(told) == 1
    metrics = worker.metrics()
    assert (metrics.failed, metrics.dead_lettered, metrics.retried) == (1, 1, 0)


@pytest.mark.row("queue", "C98")
@pytest.mark.parametrize("started", [False, True], ids=["run_until_idle", "started"])
def test_a_retry_without_delay_keeps_its_place_before_the_next_job(
    declare: Declare, make_worker: MakeWorker, started: bool
) -> None:
    log: list[str] = []

    def handle(payload: str) -> None:
        log.append(payload)
        if log == ["flaky"]:
            raise ValueError("at first")

    kind = declare("t.flaky", handle, retry_delay=0)
    ids = kind.enqueue_many(["flaky", "steady"])
    worker = make_worker(concurrency=1)
    if started:
        worker.start()
        wait_until(lambda: [state_of(job_id) for job_id in ids] == ["succeeded"] * 2)
    else:
        assert worker.run_until_idle() == 3
    assert log == ["flaky", "flaky", "steady"]
    assert [outcomes_of(job_id) for job_id in ids] == [["failed"], []]


@pytest.mark.row("queue", "C98")
def test_the_last_failure_stays_in_the_row_of_a_job_that_then_succeeded(
    declare: Declare, make_worker: MakeWorker
) -> None:
    def handle(payload: None, ctx: JobContext) -> str:
        if ctx.attempt == 1:
            raise ValueError("at first")
        return "done"

    job_id = declare("t.flaky", handle, retry_delay=0).enqueue()
    make_worker().run_until_idle()
    job = job_of(job_id)
    assert (job.state, job.attempt, job.result) == ("succeeded", 2, "done")
    assert (job.error_class, job.error) == ("builtins.ValueError", "ValueError: at first")


def set_payload(job_id: int, text: str) -> None:
    """Put a text into the row as a hand or an old release would."""
    with connection.cursor() as cursor:
        cursor.execute("UPDATE gnl_django_job SET payload = %s WHERE id = %s", [text, job_id])


@pytest.mark.row("queue", "C99")
@pytest.mark.parametrize(
    ("text", "path"),
    [('{"number":"many"}', "/number"), ("{}", "/number"), ('{"number":1', "/"), ("", "/")],
)
def test_a_payload_that_no_longer_fits_is_dead_without_calling_the_handler(
    declare: Declare, make_worker: MakeWorker, told: Told, text: str, path: str
) -> None:
    calls = []

    def ship(payload: Order) -> None:
        calls.append(payload)

    job_id = declare("t.ship", ship, max_attempts=5).enqueue({"number": 1})
    set_payload(job_id, text)
    worker = make_worker(on_error=tell(told))
    assert worker.run_until_idle() == 1
    set_payload(job_id, "null")
    job = job_of(job_id)
    assert calls == []
    assert (job.state, job.attempt) == ("dead", 1)
    assert job.error_class == "gnl_django.errors.InvalidPayload"
    assert outcomes_of(job_id) == ["invalid"]
    metrics = worker.metrics()
    assert (metrics.runs, metrics.failed, metrics.dead_lettered) == (1, 1, 1)
    (error, summary), *more = told
    assert not more
    assert isinstance(error, InvalidPayload)
    assert [issue.path for issue in error.issues] == [path]
    assert summary is not None
    assert (summary.id, summary.state) == (job_id, "dead")


@pytest.mark.row("queue", "C99")
def test_a_payload_that_is_no_json_is_dead_for_an_untyped_kind_too(
    declare: Declare, make_worker: MakeWorker
) -> None:
    calls: list[Any] = []
    job_id = declare("t.any", lambda payload: calls.append(payload)).enqueue({})
    set_payload(job_id, "{oops")
    make_worker().run_until_idle()
    set_payload(job_id, "null")
    job = job_of(job_id)
    assert calls == []
    assert (job.state, job.error_class) == ("dead", "gnl_django.errors.InvalidPayload")
    assert outcomes_of(job_id) == ["invalid"]


@pytest.mark.row("queue", "C100")
@pytest.mark.parametrize("started", [False, True], ids=["run_once", "started"])
@pytest.mark.parametrize(
    "raised",
    [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), MemoryError(), asyncio.CancelledError()],
    ids=lambda error: type(error).__name__,
)
def test_whatever_a_handler_raises_is_a_failure_and_the_worker_lives_on(
    declare: Declare, make_worker: MakeWorker, raised: BaseException, started: bool
) -> None:
    def handle(payload: Any) -> None:
        if payload == "bad":
            raise raised

    kind = declare("t.harsh", handle, max_attempts=1)
    bad, good = kind.enqueue_many(["bad", "good"])
    told: Told = []
    worker = make_worker(concurrency=1, on_error=tell(told))
    if started:
        worker.start()
        wait_until(lambda: state_of(good) == "succeeded")
        wait_until(lambda: told)
    else:
        worker.run_until_idle()
    job = job_of(bad)
    name = type(raised).__name__
    assert (job.state, job.error_class.split(".")[-1]) == ("dead", name)
    assert job.error.startswith(f"{name}: ")
    assert state_of(good) == "succeeded"
    assert [error for error, _ in told] == [raised]


class Unspeakable(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.row("queue", "C101")
@pytest.mark.parametrize(
    ("error", "begins"),
    [
        pytest.param(ValueError("a\0b"), "ValueError: a\ufffdb", id="NUL"),
        pytest.param(ValueError("a\ud800b"), "ValueError: a", id="lone surrogate"),
        pytest.param(ValueError("x" * 2**20), "ValueError: xxx", id="1 MiB"),
        pytest.param(ValueError("ü" * 2**20), "ValueError: üüü", id="2 MiB of ü"),
        pytest.param(ValueError("😀" * 2**18 + "\0"), "ValueError: 😀😀", id="1 MiB of emoji"),
        pytest.param(Unspeakable(), "Unspeakable: ", id="__str__ raises"),
        pytest.param(ValueError(), "ValueError: ", id="no text"),
        pytest.param(type("E" * 400, (Exception,), {})("long"), "E" * 400, id="long name"),
    ],
)
def test_no_text_of_an_error_keeps_its_outcome_from_being_stored(
    declare: Declare, make_worker: MakeWorker, error: Exception, begins: str
) -> None:
    def handle(payload: Any) -> NoReturn:
        raise error

    job_id = declare("t.loud", handle, max_attempts=1).enqueue()
    assert make_worker().run_once() == 1
    job = job_of(job_id)
    (attempt,) = attempts_of(job_id)
    assert job.state == "dead"
    assert job.error.startswith(begins)
    assert attempt.message == job.error
    assert "\0" not in job.error + attempt.traceback
    assert len(job.error.encode()) <= 8 * 1024
    assert len(attempt.traceback.encode()) <= 32 * 1024
    if len(str(error) if not isinstance(error, Unspeakable) else "") > 10_000:
        assert len(job.error.encode()) > 8 * 1024 - 4  # cut at the border of a character
    assert "raise error" in attempt.traceback


@pytest.mark.row("queue", "C102")
@pytest.mark.parametrize(
    ("value", "stored", "note"),
    [
        pytest.param(None, None, "", id="None"),
        pytest.param(
            {"b": [1, 1.5, None], "a": "ü"}, {"b": [1, 1.5, None], "a": "ü"}, "", id="JSON"
        ),
        pytest.param(False, False, "", id="False"),
        pytest.param("x" * 65_534, "x" * 65_534, "", id="64 KiB"),
        pytest.param("x" * 65_535, None, "result not stored: 65537 bytes", id="64 KiB + 1"),
        pytest.param("x" * 69_999, None, "result not stored: 70001 bytes", id="70,001 bytes"),
        pytest.param(set(), None, "result not stored: set is not JSON", id="set"),
        pytest.param(object, None, "result not stored: type is not JSON", id="a class"),
    ],
)
def test_a_result_is_stored_or_a_note_says_why_not(
    declare: Declare, make_worker: MakeWorker, value: Any, stored: Any, note: str
) -> None:
    job_id = declare("t.returns", lambda payload: value).enqueue()
    assert make_worker().run_once() == 1
    job = job_of(job_id)
    assert (job.state, job.result, job.note) == ("succeeded", stored, note)


@pytest.mark.row("queue", "C102")
@pytest.mark.parametrize(
    "value",
    [{"a": math.nan}, ["nul\0"], "\udfff", 2**63, {1: 2}, [[[[set()]]]], {"k" * 400: b""}],
    ids=repr,
)
def test_a_result_that_is_no_json_leaves_a_note_that_fits_its_column(
    declare: Declare, make_worker: MakeWorker, value: Any
) -> None:
    job_id = declare("t.returns", lambda payload: value).enqueue()
    assert make_worker().run_once() == 1
    job = job_of(job_id)
    assert (job.state, job.result) == ("succeeded", None)
    assert job.note.startswith("result not stored: ")
    assert len(job.note) <= 255


def _leave_autocommit_off() -> None:
    transaction.set_autocommit(False)


def _leave_atomic_open() -> None:
    transaction.atomic().__enter__()


@pytest.mark.row("queue", "C107")
@pytest.mark.parametrize("leave", [_leave_autocommit_off, _leave_atomic_open])
@pytest.mark.parametrize("fails", [False, True], ids=["returns", "raises"])
def test_a_transaction_that_a_handler_leaves_open_is_rolled_back(
    declare: Declare,
    make_worker: MakeWorker,
    caplog: pytest.LogCaptureFixture,
    leave: Any,
    fails: bool,
) -> None:
    clean = []

    def leak(payload: Any) -> None:
        leave()
        QueueState.objects.create(queue="leaked", changed_at=NOON)
        if fails:
            fail(payload)

    def look(payload: Any) -> None:
        mine = connections["default"]
        clean.append(mine.get_autocommit() and not mine.in_atomic_block)
        QueueState.objects.create(queue="kept", changed_at=NOON)

    leaky, next_one = declare("t.leaks", leak, max_attempts=1), declare("t.looks", look)
    first, second = leaky.enqueue(), next_one.enqueue()
    with caplog.at_level(logging.ERROR):
        make_worker(concurrency=1).run_until_idle()
    assert [state_of(job_id) for job_id in (first, second)] == [
        "dead" if fails else "succeeded",
        "succeeded",
    ]
    assert clean == [True]
    assert list(QueueState.objects.values_list("queue", flat=True)) == ["kept"]
    assert "t.leaks" in caplog.text


@pytest.mark.row("queue", "C110")
def test_the_calls_max_attempts_go_before_the_kinds(
    declare: Declare, make_worker: MakeWorker
) -> None:
    kind = declare("t.fails", fail, max_attempts=4, retry_delay=0)
    own, given = kind.enqueue(), kind.enqueue(max_attempts=2)
    assert make_worker().run_until_idle() == 6
    assert [(job_of(i).attempt, job_of(i).max_attempts) for i in (own, given)] == [(4, 4), (2, 2)]


@pytest.mark.row("queue", "C110")
def test_the_workers_max_attempts_go_before_all_and_are_written(
    declare: Declare, make_worker: MakeWorker
) -> None:
    seen = []

    def handle(payload: Any, ctx: JobContext) -> NoReturn:
        seen.append((ctx.attempt, ctx.max_attempts))
        raise ValueError("no")

    job_id = declare("t.fails", handle, max_attempts=4, retry_delay=0).enqueue(max_attempts=3)
    assert make_worker(max_attempts=2).run_until_idle() == 2
    job = job_of(job_id)
    assert (job.state, job.attempt, job.max_attempts) == ("dead", 2, 2)
    assert seen == [(1, 2), (2, 2)]


@pytest.mark.row("queue", "C110")
def test_the_projects_max_attempts_are_those_of_a_kind_without_any(
    declare: Declare, make_worker: MakeWorker, settings: Any
) -> None:
    kind = declare("t.fails", fail)
    settings.GNL = {"MAX_ATTEMPTS": 7}
    assert job_of(kind.enqueue()).max_attempts == 7


@pytest.mark.row("queue", "C112")
@pytest.mark.parametrize(
    "error",
    [
        lambda retry_in: StepInFlight("pay", 1.0, 60, retry_in),
        lambda retry_in: RunBusy("import-7", retry_in=retry_in),
    ],
    ids=["StepInFlight", "RunBusy"],
)
@pytest.mark.parametrize(("retry_in", "waits"), [(7.5, 7.5), (0.2, 1), (0, 1)])
def test_a_deferral_is_no_failure_and_costs_no_attempt(
    declare: Declare,
    make_worker: MakeWorker,
    frozen: clock.Override,
    told: Told,
    error: Callable[[float], Exception],
    retry_in: float,
    waits: float,
) -> None:
    attempts = []

    def handle(payload: Any, ctx: JobContext) -> str:
        attempts.append(ctx.attempt)
        if len(attempts) < 3:
            raise error(retry_in)
        return "done"

    job_id = declare("t.defers", handle, max_attempts=1).enqueue()
    worker = make_worker(on_error=tell(told))
    for deferrals in (1, 2):
        now = job_of(job_id).run_at
        frozen.set(now)
        assert worker.run_once() == 1
        job = job_of(job_id)
        assert (job.state, job.attempt, job.deferrals) == ("scheduled", 0, deferrals)
        assert (job.run_at - now).total_seconds() == waits
        assert (job.error_class, job.error, job.error_key) == ("", "", None)
    frozen.set(job.run_at)
    assert worker.run_once() == 1
    assert attempts == [1, 1, 1]
    job = job_of(job_id)
    assert (job.state, job.attempt, job.result) == ("succeeded", 1, "done")
    assert not Attempt.objects.exists()
    assert told == []
    metrics = worker.metrics()
    assert (metrics.deferred, metrics.completed, metrics.runs) == (2, 1, 3)
    assert (metrics.failed, metrics.retried) == (0, 0)


def test_a_handlers_connections_do_not_outlive_the_worker(
    declare: Declare, make_worker: MakeWorker
) -> None:
    mine = []

    def handle(payload: Any) -> None:
        Job.objects.count()
        mine.append(connections["default"])

    declare("t.looks", handle)
    enqueue("t.looks")
    worker = make_worker(concurrency=1)
    worker.run_once()
    assert worker.stop(5)
    wait_until(lambda: mine[0].connection is None)
