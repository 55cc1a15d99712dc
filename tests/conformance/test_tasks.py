"""The backend of django.tasks: a task's way from enqueue to its result, on every database."""

import pytest

pytest.importorskip("django.tasks", reason="django.tasks came with Django 6.0")

import logging
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from asgiref.sync import async_to_sync
from django.contrib.auth import get_user_model
from django.db import transaction
from django.tasks import TaskResultStatus, task_backends
from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist, TaskResultMismatch
from django.tasks.signals import task_enqueued, task_finished, task_started
from django.test import Client

from gnl_django import Worker, cancel_job, enqueue, retry_job
from gnl_django.core import clock
from gnl_django.core.revocation import Revocation, Why
from gnl_django.errors import InvalidPayload
from gnl_django.models import Attempt, Job
from gnl_django.queue.options import kinds
from tests.app import tasks
from tests.conformance.conftest import NOON, Aside, Declare, MakeWorker
from tests.conformance.helpers import columns_of, job_of, running, state_of, statements
from tests.procs import Spawner
from tests.support import wait_until

READY, RUNNING = TaskResultStatus.READY, TaskResultStatus.RUNNING
FAILED, SUCCESSFUL = TaskResultStatus.FAILED, TaskResultStatus.SUCCESSFUL
pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _forgetful() -> Iterator[None]:
    yield
    for memory in (tasks.CALLS, tasks.ASKED, tasks.ANSWER):
        memory.clear()


class Signals:
    """What the three signals of django.tasks have said, in order."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any, Any, Any]] = []
        self.errors: list[BaseException | None] = []

    def enqueued(self, sender: Any, task_result: Any, **_: Any) -> None:
        self._note("enqueued", sender, task_result)

    def started(self, sender: Any, task_result: Any, **_: Any) -> None:
        self._note("started", sender, task_result)

    def finished(self, sender: Any, task_result: Any, **_: Any) -> None:
        self._note("finished", sender, task_result)
        self.errors.append(sys.exception())

    def _note(self, name: str, sender: Any, result: Any) -> None:
        self.seen.append((name, sender, result.status, result))

    @property
    def names(self) -> list[str]:
        return [name for name, *_ in self.seen]


@pytest.fixture
def signals() -> Iterator[Signals]:
    """Listen to the signals of django.tasks."""
    heard = Signals()
    pairs = [
        (task_enqueued, heard.enqueued),
        (task_started, heard.started),
        (task_finished, heard.finished),
    ]
    for signal, receiver in pairs:
        signal.connect(receiver)
    yield heard
    for signal, receiver in pairs:
        signal.disconnect(receiver)


@pytest.fixture
def worker(make_worker: MakeWorker) -> Worker:
    """A worker; inside the test's transaction it runs tasks in this thread."""
    return make_worker(("default", "low"), name="w")


# from enqueue to the result


@pytest.mark.row("queue", "C156", "C157")
def test_a_task_is_a_job_and_its_return_value_the_result(worker: Worker) -> None:
    result = tasks.add.using(priority=7, queue_name="low").enqueue(2, second=3)
    assert (result.status, result.args, result.kwargs) == (READY, [2], {"second": 3})
    assert (result.backend, result.errors, result.worker_ids) == ("default", [], [])
    assert (result.started_at, result.finished_at, result.last_attempted_at) == (None,) * 3
    job = job_of(int(result.id))
    assert (job.kind, job.queue, job.priority) == ("tests.app.tasks.add", "low", 7)
    assert (job.payload, job.max_attempts) == ({"args": [2], "kwargs": {"second": 3}}, 5)
    assert result.enqueued_at == job.enqueued_at
    with pytest.raises(ValueError, match="not finished"):
        _ = result.return_value
    assert worker.run_until_idle() == 1
    assert tasks.CALLS == [(2, 3)]
    assert result.status == READY
    result.refresh()
    assert (result.status, result.return_value, result.is_finished) == (SUCCESSFUL, 5, True)
    job.refresh_from_db()
    assert result.worker_ids == [job.worker]
    assert result.attempts == 1
    assert (result.started_at, result.last_attempted_at) == (job.started_at, job.started_at)
    assert result.finished_at == job.finished_at
    assert tasks.add.get_result(result.id) == result


@pytest.mark.row("queue", "C156")
def test_the_result_of_an_enqueue_is_the_stored_one() -> None:
    many = tasks.add.using(
        priority=-5, queue_name="low", run_after=NOON, max_attempts=9, timeout=timedelta(seconds=3),
        backoff=[1, timedelta(seconds=2)], key="k", org="acme",
    )  # fmt: skip
    for task in (tasks.add, many, tasks.add.using(run_after=timedelta(hours=2), backend="any")):
        result = task.enqueue(1)
        stored = task.get_result(result.id)
        assert stored == result
        assert stored.task == result.task
        before = stored.enqueued_at
        result.refresh()
        assert (result == stored, result.enqueued_at) == (True, before)
    assert many.timeout == 3.0
    assert many.backoff == (1.0, 2.0)


@pytest.mark.row("queue", "C156")
def test_enqueue_costs_two_statements_and_rolls_back_with_the_caller() -> None:
    with statements() as texts:
        tasks.add.enqueue(1)
    assert len(texts) == 2
    with transaction.atomic():
        tasks.add.enqueue(2)
        transaction.set_rollback(True)
    assert Job.objects.count() == 1


@pytest.mark.row("queue", "C156")
@pytest.mark.django_db(transaction=True)
def test_the_async_calls_do_the_same(worker: Worker, signals: Signals) -> None:
    async def story() -> Any:
        result = await tasks.add.aenqueue(1, second=2)
        assert (result.status, result.args, result.kwargs) == (READY, [1], {"second": 2})
        assert await tasks.add.aget_result(result.id) == result
        with pytest.raises(TaskResultDoesNotExist):
            await tasks.add.aget_result("123")
        with pytest.raises(TaskResultMismatch, match="Task does not match"):
            await tasks.nothing.aget_result(result.id)
        with pytest.raises(TypeError, match="Unsupported type"):
            await tasks.nothing.aenqueue(NOON)
        await result.arefresh()
        return result

    result = async_to_sync(story)()
    assert signals.names == ["enqueued"]
    assert worker.run_until_idle() == 1
    async_to_sync(result.arefresh)()
    assert result.return_value == 3


@pytest.mark.row("queue", "C156")
def test_the_result_of_another_task_does_not_match() -> None:
    result = tasks.add_async.enqueue(1)
    with pytest.raises(TaskResultMismatch, match=r"tests\.app\.tasks\.add_async"):
        tasks.add.get_result(result.id)


@pytest.mark.row("queue", "C156")
@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {}), ((1, 2, 3), {}), ((1,), {"first": 1}), ((1,), {"third": 1})],
)
def test_arguments_that_the_function_does_not_take_are_refused(args: Any, kwargs: Any) -> None:
    with pytest.raises(TypeError, match="argument"):
        tasks.add.enqueue(*args, **kwargs)
    with pytest.raises(TypeError, match="context"):
        tasks.where.enqueue(context=1)
    assert Job.objects.count() == 0


@pytest.mark.row("queue", "C156")
def test_arguments_that_are_no_strict_json_are_refused() -> None:
    deep: Any = []
    for _ in range(40):
        deep = [deep]
    for value in (NOON, {1}, object()):
        with pytest.raises(TypeError, match="Unsupported type"):
            tasks.nothing.enqueue(value)
    for path, value in {
        "/args/0": b"x", "/args/0/1": {1: 2}, "/kwargs/a": float("nan"), "/kwargs/a/0": 2**63,
    }.items():  # fmt: skip
        args, kwargs = ((value,), {}) if path.startswith("/args") else ((), {"a": value})
        if path == "/kwargs/a/0":
            kwargs = {"a": [value]}
        with pytest.raises(InvalidPayload) as caught:
            tasks.nothing.enqueue(*args, **kwargs)
        assert caught.value.issues[0].path == path
    with pytest.raises(InvalidPayload, match="deeper"):
        tasks.nothing.enqueue(deep)
    assert Job.objects.count() == 0
    assert tasks.nothing.enqueue((1, 2)).args == [[1, 2]]


@pytest.mark.row("queue", "C157", "C163")
@pytest.mark.django_db(transaction=True)
def test_a_worker_in_another_process_finds_the_tasks_by_itself(
    spawn: Spawner, signals: Signals
) -> None:
    results = [
        tasks.says.enqueue("hello"),
        tasks.add_async.using(org="acme").enqueue(4, second=5),
        tasks.where_async.enqueue(),
    ]
    child = spawn(["gnl_worker", "--until-idle", "--name", "far"])
    child.wait_line("task says hello")
    assert child.wait() == 0
    for result in results:
        result.refresh()
    assert [result.return_value for result in results] == ["hello", 9, [results[2].id, 1]]
    for result in results:
        (name,) = result.worker_ids
        assert name.startswith("far/")
    assert signals.names == ["enqueued"] * 3


@pytest.mark.row("queue", "C163")
def test_a_task_that_wants_its_context_gets_the_running_result(
    worker: Worker, signals: Signals
) -> None:
    result = tasks.where.enqueue(loud=True)
    assert worker.run_until_idle() == 1
    result.refresh()
    assert result.return_value == {
        "id": result.id, "attempt": 1, "status": "RUNNING", "workers": 1, "loud": True,
    }  # fmt: skip


@pytest.mark.row("queue", "C163")
@pytest.mark.django_db(transaction=True)
def test_a_coroutine_runs_in_a_workers_slot_with_its_context(worker: Worker) -> None:
    result = tasks.where_async.enqueue()
    other = tasks.add_async.enqueue(1, 1)
    assert worker.run_until_idle() == 2
    result.refresh()
    other.refresh()
    assert result.return_value == [result.id, 1]
    assert other.return_value == 2


@pytest.mark.row("queue", "C163")
def test_a_timedelta_counts_from_the_enqueue_by_the_databases_clock(
    frozen: clock.Override, worker: Worker
) -> None:
    later = tasks.add.using(run_after=timedelta(hours=1))
    assert isinstance(later.run_after, datetime)
    frozen.advance(timedelta(days=2))
    result = later.enqueue(1)
    due = NOON + timedelta(days=2, hours=1)
    assert (result.task.run_after, job_of(int(result.id)).run_at) == (due, due)
    assert (result.status, state_of(int(result.id))) == (READY, "scheduled")
    frozen.advance(timedelta(minutes=59))
    assert worker.run_until_idle() == 0
    frozen.advance(timedelta(minutes=1))
    assert worker.run_until_idle() == 1
    assert later.get_result(result.id).task.run_after == due


@pytest.mark.row("queue", "C163")
def test_a_time_in_another_zone_is_the_same_time(frozen: clock.Override, worker: Worker) -> None:
    due = (NOON + timedelta(minutes=1)).astimezone(ZoneInfo("Asia/Tokyo"))
    result = tasks.add.using(run_after=timedelta(days=1)).using(run_after=due).enqueue(1)
    assert job_of(int(result.id)).run_at == due
    assert tasks.add.get_result(result.id).task == result.task


@pytest.mark.row("queue", "C157")
def test_without_use_tz_all_times_are_local_and_naive(
    settings: Any, frozen: clock.Override, worker: Worker
) -> None:
    settings.USE_TZ = False
    settings.TIME_ZONE = "Asia/Tokyo"  # nine hours ahead, all year
    due = datetime(2031, 5, 7, 21, 30)  # noqa: DTZ001 - naive on purpose
    result = tasks.add.using(run_after=due).enqueue(1)
    assert result.enqueued_at == datetime(2031, 5, 7, 21, 0)  # noqa: DTZ001
    assert job_of(int(result.id)).run_at == datetime(2031, 5, 7, 12, 30, tzinfo=UTC)
    assert tasks.add.get_result(result.id) == result
    frozen.advance(timedelta(minutes=30))
    assert worker.run_until_idle() == 1
    result.refresh()
    assert (result.started_at, result.last_attempted_at, result.finished_at) == (due,) * 3
    assert tasks.add.using(run_after=timedelta(hours=1)).enqueue(1).task.run_after == (
        due + timedelta(hours=1)
    )


# failures


@pytest.mark.row("queue", "C158")
@pytest.mark.django_db(transaction=True)
def test_a_task_that_fails_twice_is_ready_between_and_finished_once(
    worker: Worker, signals: Signals, caplog: pytest.LogCaptureFixture
) -> None:
    result = tasks.third_time.enqueue()
    for failures in (1, 2):
        assert worker.run_once() == 1
        result.refresh()
        assert (result.status, len(result.errors), result.attempts) == (READY, failures, failures)
        assert result.finished_at is None
    with caplog.at_level(logging.INFO, "django.tasks"):
        assert worker.run_until_idle() == 1
    result.refresh()
    assert (result.status, result.return_value, result.attempts) == (SUCCESSFUL, 3, 3)
    assert [error.exception_class for error in result.errors] == [ValueError, ValueError]
    assert 'raise ValueError(f"failure {context.attempt}")' in result.errors[1].traceback
    assert "failure 2" in result.errors[1].traceback
    assert "queue/tasks/kind.py" not in result.errors[1].traceback
    assert signals.names == ["enqueued", "started", "started", "started", "finished"]
    assert [status for _, _, status, _ in signals.seen] == [
        READY, RUNNING, RUNNING, RUNNING, SUCCESSFUL,
    ]  # fmt: skip
    assert {sender for _, sender, _, _ in signals.seen} == {type(task_backends["default"])}
    assert [r.attempts for _, _, _, r in signals.seen[1:]] == [1, 2, 3, 3]
    assert signals.errors == [None]
    attempts = Attempt.objects.order_by("id")
    assert result.started_at == attempts[0].started_at
    assert result.last_attempted_at == job_of(int(result.id)).started_at
    assert result.worker_ids == [worker.options.name] * 3
    assert "state=SUCCESSFUL" in caplog.text


@pytest.mark.row("queue", "C158", "C159")
@pytest.mark.parametrize(("name", "error"), [("fails", ValueError), ("gives_up", None)])
@pytest.mark.django_db(transaction=True)
def test_the_end_of_a_failed_task_is_told_with_the_error_at_hand(
    worker: Worker, signals: Signals, caplog: pytest.LogCaptureFixture, name: str, error: Any
) -> None:
    result = getattr(tasks, name).enqueue()
    with caplog.at_level(logging.ERROR, "django.tasks"):
        assert worker.run_until_idle() == (2 if name == "fails" else 1)
    result.refresh()
    assert (result.status, result.is_finished) == (FAILED, True)
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value
    assert signals.names.count("finished") == 1
    (seen,) = signals.errors
    assert seen is not None
    assert type(seen).__name__ == result.errors[-1].exception_class_path.split(".")[-1]
    assert signals.seen[-1][3] == result
    (record,) = [record for record in caplog.records if record.name == "django.tasks"]
    assert record.exc_info is not None
    assert record.exc_info[1] is seen
    if error is not None:
        assert (result.errors[-1].exception_class, len(result.errors)) == (error, 2)


@pytest.mark.row("queue", "C158")
@pytest.mark.django_db(transaction=True)
def test_tasks_fail_in_a_workers_threads_as_in_the_callers(
    worker: Worker, signals: Signals
) -> None:
    failing = tasks.fails_async.using(max_attempts=2, backoff=0).enqueue()
    leaving = tasks.leaves.using(max_attempts=1).enqueue()
    assert worker.run_until_idle() == 3
    failing.refresh()
    leaving.refresh()
    assert [error.exception_class for error in failing.errors] == [ValueError, ValueError]
    assert [error.exception_class for error in leaving.errors] == [SystemExit]
    assert failing.errors[0].traceback.count("File ") == 1
    assert (failing.status, leaving.status) == (FAILED, FAILED)
    assert signals.names.count("finished") == 2


@pytest.mark.row("queue", "C157")
@pytest.mark.django_db(transaction=True)
def test_a_task_that_nobody_watches_costs_a_worker_no_further_statement(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    result = tasks.add.enqueue(1)
    with caplog.at_level(logging.INFO, "django.tasks"), statements() as texts:
        assert worker.run_once() == 1
    assert not [text for text in texts if "EXISTS" in text and "gnl_django_attempt a" in text]
    assert f"Task id={result.id} path=tests.app.tasks.add state=RUNNING" in caplog.text
    assert f"Task id={result.id} path=tests.app.tasks.add state=SUCCESSFUL" in caplog.text


@pytest.mark.row("queue", "C158")
def test_inside_a_transaction_the_end_is_told_when_it_commits(
    worker: Worker, signals: Signals, django_capture_on_commit_callbacks: Any
) -> None:
    result = tasks.add.enqueue(1)
    with django_capture_on_commit_callbacks(execute=True):
        assert worker.run_until_idle() == 1
        assert signals.names == ["enqueued", "started"]
    assert signals.names == ["enqueued", "started", "finished"]
    result.refresh()
    assert signals.seen[-1][3] == result


@pytest.mark.row("queue", "C159")
@pytest.mark.django_db(transaction=True)
def test_a_dead_task_names_the_lease_that_ran_out(worker: Worker, signals: Signals) -> None:
    result = tasks.add.using(max_attempts=1).enqueue(1)
    running(int(result.id), lease=timedelta(0))
    result.refresh()
    assert (result.status, result.worker_ids) == (RUNNING, ["elsewhere/host/1/abcdef"])
    assert result.started_at is not None
    assert worker.run_once() == 0
    result.refresh()
    assert (result.status, result.attempts) == (FAILED, 1)
    (error,) = result.errors
    assert error.exception_class_path == "gnl_django.errors.LeaseExpired"
    assert "LeaseExpired" in error.traceback
    assert signals.names == ["enqueued", "finished"]


@pytest.mark.row("queue", "C159")
@pytest.mark.django_db(transaction=True)
def test_a_canceled_task_has_failed_and_says_why(worker: Worker, signals: Signals) -> None:
    result = tasks.fails.using(backoff=3600).enqueue()
    assert worker.run_once() == 1
    assert cancel_job(int(result.id), "no longer wanted") is True
    result.refresh()
    assert result.status == FAILED
    assert [error.exception_class_path for error in result.errors] == [
        "builtins.ValueError",
        "gnl_django.errors.ExecutionRevoked",
    ]
    assert "no longer wanted" in result.errors[-1].traceback
    assert result.finished_at == job_of(int(result.id)).finished_at
    assert signals.names == ["enqueued", "started", "finished"]
    assert retry_job(int(result.id)) is not None
    result.refresh()
    assert (result.status, len(result.errors), result.finished_at) == (READY, 1, None)


@pytest.mark.row("queue", "C159")
@pytest.mark.django_db(transaction=True)
def test_arguments_that_no_longer_fit_make_the_task_fail_without_a_call(
    worker: Worker, signals: Signals
) -> None:
    result = tasks.add.enqueue(1)
    Job.objects.filter(id=result.id).update(payload={"args": [1, 2, 3], "kwargs": {}})
    assert worker.run_until_idle() == 1
    result.refresh()
    assert (result.status, tasks.CALLS) == (FAILED, [])
    assert result.errors[0].exception_class_path == "gnl_django.errors.InvalidPayload"
    assert signals.names == ["enqueued", "finished"]


@pytest.mark.row("queue", "C159")
@pytest.mark.parametrize("name", ["waits", "waits_async"])
@pytest.mark.django_db(transaction=True)
def test_a_timeout_is_a_failure_that_follows_the_tasks_backoff(
    make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    real = Revocation.revoke

    def revoke(self: Revocation, why: Why) -> bool:
        first = real(self, why)
        tasks.TIMED_OUT.set()
        return first

    monkeypatch.setattr(Revocation, "revoke", revoke)
    tasks.TIMED_OUT.clear()
    worker = make_worker()
    result = getattr(tasks, name).using(timeout=0.05, backoff=0, max_attempts=2).enqueue()
    assert worker.run_until_idle() == 2
    result.refresh()
    assert result.status == FAILED
    assert {error.exception_class_path for error in result.errors} == {
        "gnl_django.errors.ExecutionRevoked"
    }
    assert [row.outcome for row in Attempt.objects.all()] == ["timeout"] * 2


@pytest.mark.row("queue", "C161")
@pytest.mark.parametrize("name", ["asks", "asks_async"])
@pytest.mark.django_db(transaction=True)
def test_a_backoff_of_none_means_no_further_attempt(worker: Worker, name: str) -> None:
    tasks.ANSWER[:] = [None]
    result = getattr(tasks, name).enqueue()
    assert worker.run_until_idle() == 1
    assert tasks.ASKED == [("asked", 1)]
    job = job_of(int(result.id))
    assert (job.state, job.attempt, job.max_attempts) == ("dead", 1, 5)
    result.refresh()
    assert (result.status, len(result.errors)) == (FAILED, 1)


@pytest.mark.row("queue", "C161")
def test_a_backoff_function_says_when(
    worker: Worker, frozen: clock.Override, caplog: pytest.LogCaptureFixture
) -> None:
    result = tasks.asks.using(max_attempts=5).enqueue()
    answers = [(7, 7), (timedelta(minutes=1), 60), (ValueError("x"), 4), ("soon", 8)]
    for answer, delay in answers:
        tasks.ANSWER[:] = [answer]
        assert worker.run_once() == 1
        job = job_of(int(result.id))
        assert (job.run_at - clock_now(frozen)).total_seconds() == delay
        frozen.advance(timedelta(seconds=delay))
    assert caplog.text.count("backoff of tests.app.tasks.asks gives no delay") == 2
    assert worker.run_once() == 1
    assert [attempt for _, attempt in tasks.ASKED] == [1, 2, 3, 4]
    assert state_of(int(result.id)) == "dead"


def clock_now(frozen: clock.Override) -> datetime:
    """Return the instant at which the database's clock stands."""
    from gnl_django.core import db

    return db.now("default")


@pytest.mark.row("queue", "C161")
def test_a_backoff_may_be_a_number_or_one_for_each_attempt(
    worker: Worker, frozen: clock.Override
) -> None:
    for backoff, delays in ((90, [90, 90, 90]), ([5, timedelta(minutes=1)], [5, 60, 60])):
        result = tasks.fails.using(backoff=backoff, max_attempts=9).enqueue()
        for delay in delays:
            assert worker.run_once() == 1
            job = job_of(int(result.id))
            assert (job.run_at - clock_now(frozen)).total_seconds() == delay
            frozen.advance(timedelta(seconds=delay))
        cancel_job(int(result.id))


@pytest.mark.row("queue", "C162")
@pytest.mark.parametrize("what", ["set", "bytes", "nan", "odd", "1 MiB + 1"])
@pytest.mark.django_db(transaction=True)
def test_a_value_that_cannot_be_stored_fails_the_task_at_once(
    worker: Worker, signals: Signals, what: str
) -> None:
    result = tasks.returns.enqueue(what)
    assert worker.run_until_idle() == 1
    assert list(tasks.CALLS) == [what]
    result.refresh()
    assert result.status == FAILED
    (error,) = result.errors
    assert error.exception_class_path == "gnl_django.errors.InvalidResult"
    assert "return value of tests.app.tasks.returns" in error.traceback
    assert (job_of(int(result.id)).state, signals.names[-1]) == ("dead", "finished")


@pytest.mark.row("queue", "C162")
@pytest.mark.parametrize(("what", "stored"), [("tuple", [1, 2]), ("1 MiB", "x" * 1_048_574)])
def test_a_value_of_up_to_a_mebibyte_is_stored(worker: Worker, what: str, stored: Any) -> None:
    result = tasks.returns.enqueue(what)
    assert worker.run_until_idle() == 1
    result.refresh()
    assert result.return_value == stored


@pytest.mark.row("queue", "C157")
@pytest.mark.django_db(transaction=True)
def test_receivers_that_fail_change_nothing(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(**_: Any) -> None:
        raise RuntimeError("a receiver")

    for signal in (task_enqueued, task_started, task_finished):
        signal.connect(broken)
    try:
        result = tasks.add.enqueue(1)
        assert worker.run_until_idle() == 1
    finally:
        for signal in (task_enqueued, task_started, task_finished):
            signal.disconnect(broken)
    result.refresh()
    assert result.status == SUCCESSFUL
    assert caplog.text.count("RuntimeError: a receiver") == 3


@pytest.mark.row("queue", "C157")
@pytest.mark.django_db(transaction=True)
def test_a_task_whose_row_is_taken_away_is_not_called(
    worker: Worker, signals: Signals, failpoint: Any
) -> None:
    result = tasks.add.enqueue(1)
    failpoint("handler.before", lambda: Job.objects.update(claim_token="0" * 32))
    assert worker.run_once() == 1
    assert (tasks.CALLS, signals.names) == ([], ["enqueued"])
    assert worker.metrics().lost == 1
    assert state_of(int(result.id)) == "running"


# keys and organizations


@pytest.mark.row("queue", "C157")
@pytest.mark.django_db(transaction=True)
def test_a_key_gives_the_result_of_the_job_that_has_it(worker: Worker, signals: Signals) -> None:
    keyed = tasks.add.using(key="once", org="acme")
    first = keyed.enqueue(1)
    assert (job_of(int(first.id)).org, job_of(int(first.id)).key) == ("acme", "once")
    assert worker.run_until_idle() == 1
    again = keyed.enqueue(2)
    assert (again.id, again.args, again.status, again.return_value) == (
        first.id,
        [1],
        SUCCESSFUL,
        1,
    )
    assert keyed.using(org="other").enqueue(3).id != first.id
    assert signals.names == ["enqueued", "started", "finished", "enqueued"]
    before = columns_of(int(first.id))
    with pytest.raises(
        TaskResultMismatch, match=r"'once' belongs to job \d+ of 'tests\.app\.tasks"
    ):
        tasks.nothing.using(key="once", org="acme").enqueue()
    assert columns_of(int(first.id)) == before
    assert Job.objects.count() == 2


@pytest.mark.row("queue", "C157")
def test_organizations_take_turns_with_their_tasks(make_worker: MakeWorker) -> None:
    for org, number in (("a", 1), ("a", 2), ("b", 3)):
        tasks.add.using(org=org).enqueue(number)
    make_worker(concurrency=1).run_until_idle()
    assert [first for first, _ in tasks.CALLS] == [1, 3, 2]


@pytest.mark.row("queue", "C157")
def test_a_task_can_be_enqueued_as_a_job_by_its_path(worker: Worker) -> None:
    job_id = enqueue("tests.app.tasks.fails", {"args": [], "kwargs": {"text": "x"}})
    assert job_of(job_id).max_attempts == 2
    with pytest.raises(InvalidPayload, match="args"):
        enqueue("tests.app.tasks.add", {"first": 1})
    with pytest.raises(TypeError, match="first"):
        enqueue("tests.app.tasks.add", {"args": [], "kwargs": {}})
    assert worker.run_until_idle() == 2
    result = tasks.fails.get_result(str(job_id))
    assert (result.status, result.kwargs, result.backend) == (FAILED, {"text": "x"}, "default")


# results that are none


@pytest.mark.row("queue", "C160")
@pytest.mark.parametrize(
    "result_id",
    ["", "x", "0", "-1", "1.0", " 1", "01", "\u0661", "9" * 19, "9" * 400, "1\n", "123", 5, None],
)
def test_what_is_no_id_of_a_result_does_not_exist(result_id: Any) -> None:
    with pytest.raises(TaskResultDoesNotExist):
        task_backends["default"].get_result(result_id)


@pytest.mark.row("queue", "C160")
def test_a_job_that_is_no_task_has_no_result(declare: Declare) -> None:
    job_id = declare("t.plain").enqueue()
    for name in ("t.plain", "t.gone"):
        Job.objects.filter(id=job_id).update(kind=name)
        with pytest.raises(TaskResultDoesNotExist):
            tasks.add.get_result(str(job_id))


@pytest.fixture
def gone() -> Iterator[str]:
    """A task that was enqueued, and whose function is then taken away; its id."""
    result = tasks.nothing.enqueue()
    entry = kinds.known("tests.app.tasks.nothing")
    assert entry is not None
    kinds.forget("tests.app.tasks.nothing")
    yield result.id
    kinds.register("tests.app.tasks.nothing", entry)


@pytest.mark.row("queue", "C164")
def test_an_old_row_of_a_function_that_is_gone_names_it(gone: str, worker: Worker) -> None:
    for backend in ("default", "any"):
        with pytest.raises(InvalidTask, match=r"'tests\.app\.tasks\.nothing'"):
            task_backends[backend].get_result(gone)
    assert worker.run_until_idle() == 0
    assert state_of(int(gone)) == "ready"


@pytest.mark.row("queue", "C164")
def test_the_studio_shows_an_old_row_of_a_function_that_is_gone(gone: str, client: Client) -> None:
    client.force_login(get_user_model().objects.create_superuser("ops", "o@example.org", "x"))
    page = client.get(f"/admin/gnl_django/job/{gone}/change/")
    assert page.status_code == 200
    assert "tests.app.tasks.nothing" in page.content.decode()
    assert client.get("/admin/gnl_django/job/").status_code == 200


@pytest.mark.row("queue", "C164")
def test_a_result_outlives_its_queue_and_its_backend(settings: Any) -> None:
    result = tasks.add.using(backend="any", queue_name="elsewhere").enqueue(1)
    mine = dict(settings.TASKS["default"])
    settings.TASKS = {"default": mine}
    found = tasks.add.get_result(result.id)
    assert (found.backend, found.task.backend) == ("default", "default")
    assert found.task.queue_name == "elsewhere"
    assert found.args == [1]


@pytest.mark.row("queue", "C157")
@pytest.mark.django_db(transaction=True)
def test_a_worker_that_dies_in_a_task_leaves_it_to_the_next(
    spawn: Spawner, worker: Worker, aside: Aside
) -> None:
    result = tasks.dies.using(max_attempts=1).enqueue()
    child = spawn(["gnl_worker", "--until-idle", "--ttl", "1"])
    assert child.wait() < 0
    worker.start()
    wait_until(lambda: state_of(int(result.id)) == "dead")
    result.refresh()
    assert result.errors[-1].exception_class_path == "gnl_django.errors.LeaseExpired"
    assert result.attempts == 1
