"""An operator runs a waiting job now and puts a dead one away, once however often he asks."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from gnl_django import JobKind, discard_job, retry_job, run_job_now
from gnl_django.core.db import now
from gnl_django.queue import retention
from tests.conformance.conftest import NOON, Aside, Declare, MakeWorker
from tests.conformance.helpers import columns_of, fail, job_of, row_held, running, state_of
from tests.support import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

UNKNOWN = 2**62
Kind = JobKind[Any]


def made(state: str, declare: Declare, make_worker: MakeWorker) -> int:
    """Return a job in `state`."""
    if state in {"ready", "running", "canceled"}:
        job_id = declare("t.plain").enqueue()
        if state == "running":
            running(job_id)
        elif state == "canceled":
            from gnl_django import cancel_job

            cancel_job(job_id, "first reason")
    elif state == "scheduled":
        job_id = declare("t.plain").enqueue(delay=3600)
    elif state == "succeeded":
        job_id = declare("t.plain").enqueue()
        make_worker().run_once()
    else:
        job_id = declare("t.fails", fail, max_attempts=1).enqueue()
        make_worker().run_once()
    assert state_of(job_id) == state
    return job_id


def changes(job_id: int, act: Callable[[], object]) -> dict[str, Any]:
    """Return the columns that `act` changes."""
    before = columns_of(job_id)
    act()
    return {name: value for name, value in columns_of(job_id).items() if value != before[name]}


@pytest.mark.row("studio", "C53")
def test_a_scheduled_job_is_made_ready_and_due_now(
    declare: Declare, make_worker: MakeWorker, frozen: Any
) -> None:
    job_id = made("scheduled", declare, make_worker)
    answers = []
    done = changes(job_id, lambda: answers.append(run_job_now(job_id)))
    assert done == {"state": "ready", "run_at": NOON}
    assert answers == [True]
    assert run_job_now(job_id) is False
    assert make_worker().run_once() == 1


@pytest.mark.row("studio", "C53")
@pytest.mark.parametrize("state", ["ready", "running", "succeeded", "dead", "canceled"])
def test_a_job_in_another_state_is_not_run_now(
    declare: Declare, make_worker: MakeWorker, state: str
) -> None:
    job_id = made(state, declare, make_worker)
    assert changes(job_id, lambda: run_job_now(job_id)) == {}
    assert run_job_now(job_id) is False
    assert run_job_now(UNKNOWN) is False


def test_a_job_run_now_wakes_the_workers_of_this_process(
    kind: Kind, make_worker: MakeWorker
) -> None:
    worker = make_worker(poll=60, max_poll=60)
    worker.start()
    wait_until(worker.idle)
    job_id = kind.enqueue(delay=3600)
    assert run_job_now(job_id) is True
    wait_until(lambda: state_of(job_id) == "succeeded")


@pytest.mark.parametrize("reason", ["", "not worth it"])
def test_a_dead_job_is_put_away_and_kept_from_then_on(
    declare: Declare, make_worker: MakeWorker, finished: list[dict[str, Any]], reason: str
) -> None:
    job_id = made("dead", declare, make_worker)
    finished.clear()
    done = changes(job_id, lambda: discard_job(job_id, reason))
    assert done["state"] == "canceled"
    assert set(done) <= {"state", "finished_at", "cancel_reason"}
    job = job_of(job_id)
    assert job.cancel_reason == reason
    assert job.error == "ValueError: no"
    assert finished == [{"job_id": job_id, "kind": "t.fails", "org": None, "state": "canceled"}]
    assert now("default") - job.finished_at < timedelta(minutes=1)
    assert not any(retention.prune().values())
    assert retry_job(job_id) == job_id


def test_a_second_discard_changes_nothing(declare: Declare, make_worker: MakeWorker) -> None:
    job_id = made("dead", declare, make_worker)
    assert discard_job(job_id, "first") is True
    assert changes(job_id, lambda: discard_job(job_id, "second")) == {}
    assert discard_job(job_id) is False


@pytest.mark.parametrize("state", ["scheduled", "ready", "running", "succeeded", "canceled"])
def test_a_job_that_is_not_dead_is_not_put_away(
    declare: Declare, make_worker: MakeWorker, state: str
) -> None:
    job_id = made(state, declare, make_worker)
    assert changes(job_id, lambda: discard_job(job_id, "no")) == {}
    assert discard_job(job_id) is False
    assert discard_job(UNKNOWN) is False


def test_a_reason_is_cut_to_500_characters(declare: Declare, make_worker: MakeWorker) -> None:
    job_id = made("dead", declare, make_worker)
    discard_job(job_id, "ä" * 600)
    assert job_of(job_id).cancel_reason == "ä" * 500


def test_both_are_undone_with_the_callers_transaction_and_tell_nobody_then(
    declare: Declare, make_worker: MakeWorker, finished: list[dict[str, Any]]
) -> None:
    waiting = made("scheduled", declare, make_worker)
    dead = made("dead", declare, make_worker)
    finished.clear()
    with transaction.atomic():
        assert run_job_now(waiting) is True
        assert discard_job(dead) is True
        transaction.set_rollback(True)
    assert [state_of(waiting), state_of(dead)] == ["scheduled", "dead"]
    assert finished == []


def test_of_two_operators_at_once_one_has_done_it(
    declare: Declare, make_worker: MakeWorker, aside: Aside
) -> None:
    waiting = made("scheduled", declare, make_worker)
    dead = made("dead", declare, make_worker)
    with row_held(waiting):
        calls = [aside(lambda: run_job_now(waiting)) for _ in range(2)]
        assert not any(call.ends_within(0.05) for call in calls)
    assert sorted(call.result() for call in calls) == [False, True]
    with row_held(dead):
        calls = [aside(lambda: discard_job(dead)) for _ in range(2)]
        assert not any(call.ends_within(0.05) for call in calls)
    assert sorted(call.result() for call in calls) == [False, True]
