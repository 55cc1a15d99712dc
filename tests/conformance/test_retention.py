"""Finished jobs go when they were kept long enough: by command, and by workers on the side."""

import logging
from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import connection, transaction

from gnl_django import JobKind, conf, retry_job, retry_jobs
from gnl_django.core.db import now
from gnl_django.models import Attempt, Job
from gnl_django.queue import retention
from gnl_django.queue.store import pruning, store_for
from tests.conformance.conftest import Aside, Declare, FailPoint, MakeWorker
from tests.conformance.helpers import fail, row_held, statements
from tests.conformance.support_claim import Gate
from tests.support import vendor, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
NOTHING = dict.fromkeys(("succeeded", "canceled", "dead", "runs", "marks"), 0)
Kind = JobKind[Any]
Finished = Callable[..., list[int]]


@pytest.fixture
def made(kind: Kind) -> Finished:
    """Make finished jobs: `made("succeeded", age, count=1)`; they were enqueued an hour before."""

    def make(state: str, age: timedelta, count: int = 1, **options: Any) -> list[int]:
        ids = kind.enqueue_many(range(count), **options)
        moment = now("default") - age
        Job.objects.filter(id__in=ids).update(
            state=state,
            finished_at=None if state in {"ready", "scheduled"} else moment,
            enqueued_at=moment - HOUR,
        )
        return ids

    return make


def remaining() -> list[int]:
    """Return the ids of the jobs that are left."""
    return list(Job.objects.order_by("id").values_list("id", flat=True))


@pytest.mark.row("queue", "C120")
@pytest.mark.parametrize(
    ("state", "days"), [("succeeded", 7), ("canceled", 7), ("dead", 90), ("dead", 91)]
)
def test_a_job_is_kept_until_its_time_is_over(made: Finished, state: str, days: int) -> None:
    (old,) = made(state, days * DAY)
    (young,) = made(state, (min(days, 90) * DAY) - HOUR)
    counts = retention.prune()
    assert counts == {**NOTHING, state: 1}
    assert remaining() == [young]
    assert old != young


@pytest.mark.row("queue", "C120")
def test_the_databases_clock_decides(made: Finished, frozen: Any) -> None:
    made("succeeded", 7 * DAY - timedelta(microseconds=1))
    assert retention.prune()["succeeded"] == 0
    frozen.advance(timedelta(microseconds=1))
    assert retention.prune()["succeeded"] == 1


def test_unfinished_jobs_are_never_deleted(made: Finished) -> None:
    ids = [*made("ready", 400 * DAY), *made("scheduled", 400 * DAY)]
    (old,) = made("succeeded", 400 * DAY)
    retention.prune()
    assert remaining() == ids
    assert old not in ids


@pytest.mark.parametrize(
    ("setting", "state"),
    [("KEEP_SUCCEEDED", "succeeded"), ("KEEP_CANCELED", "canceled"), ("KEEP_DEAD", "dead")],
)
def test_none_keeps_for_ever_and_each_state_has_its_own_time(
    made: Finished, settings: Any, setting: str, state: str
) -> None:
    settings.GNL = {"KEEP_SUCCEEDED": 60, "KEEP_CANCELED": 60.5, "KEEP_DEAD": HOUR, setting: None}
    kept = [made(name, 3_000 * DAY)[0] for name in ("succeeded", "canceled", "dead")]
    gone = retention.prune()
    assert gone == {**NOTHING, "succeeded": 1, "canceled": 1, "dead": 1, state: 0}
    assert list(Job.objects.values_list("state", flat=True)) == [state]
    assert len(kept) == 3


def test_with_nothing_to_delete_ever_nothing_is_read(settings: Any, made: Finished) -> None:
    settings.GNL = dict.fromkeys(("KEEP_SUCCEEDED", "KEEP_CANCELED", "KEEP_DEAD"))
    made("dead", 4_000 * DAY)
    with statements() as texts:
        retention.prune()
    assert not [text for text in texts if "gnl_django_job" in text]


@pytest.mark.parametrize("wrong", [-1, "7", True, timedelta(days=-1), timedelta.max, 1e15])
def test_a_wrong_time_to_keep_is_refused(settings: Any, wrong: object) -> None:
    settings.GNL = {"KEEP_DEAD": wrong}
    with pytest.raises(ImproperlyConfigured, match="KEEP_DEAD"):
        conf.settings()


def test_attempts_go_with_their_job(
    declare: Declare, make_worker: MakeWorker, made: Finished
) -> None:
    kind = declare("t.fails", fail, max_attempts=3, retry_delay=0)
    old, young = kind.enqueue_many(range(2))
    make_worker().run_until_idle()
    Job.objects.filter(id=old).update(finished_at=now("default") - 90 * DAY)
    assert Attempt.objects.count() == 6
    retention.prune()
    assert set(Attempt.objects.values_list("job_id", flat=True)) == {young}


@pytest.mark.row("queue", "C17")
def test_the_key_of_a_deleted_job_is_free_again(made: Finished, kind: Kind) -> None:
    (old,) = made("succeeded", 8 * DAY, key="k", org="acme")
    assert kind.enqueue(key="k", org="acme") == old
    retention.prune()
    assert kind.enqueue(key="k", org="acme") != old


@pytest.mark.row("queue", "C120")
@pytest.mark.parametrize("state", ["succeeded", "canceled", "dead"])
def test_many_go_in_batches_and_a_broken_run_is_begun_again(
    made: Finished, monkeypatch: pytest.MonkeyPatch, failpoint: FailPoint, state: str
) -> None:
    monkeypatch.setattr(pruning, "BATCH", 10)
    made(state, 100 * DAY, count=25)
    made("ready", 100 * DAY, count=25)
    made(state, 100 * DAY, count=5)
    batches = []

    def third_time() -> None:
        batches.append(Job.objects.filter(state=state).count())
        if len(batches) == 3:
            raise RuntimeError("the process dies")

    failpoint("prune.deleted", third_time)
    with pytest.raises(RuntimeError):
        retention.prune()
    assert Job.objects.filter(state=state).count() >= 10
    failpoint("prune.deleted", lambda: None)
    retention.prune()
    assert Job.objects.filter(state=state).count() == 0
    assert Job.objects.filter(state="ready").count() == 25


def test_the_walk_ends_at_the_first_job_enqueued_after_the_cut_off(
    made: Finished, kind: Kind
) -> None:
    (old,) = made("succeeded", 8 * DAY)
    (young,) = made("succeeded", 2 * DAY)
    (late,) = made("succeeded", 8 * DAY)
    store = store_for("default")
    moment = now("default")
    cutoffs = pruning.Cutoffs(moment - 7 * DAY, moment - 7 * DAY, None)
    look = pruning.look_at_finished(store, cutoffs, 0)
    assert look == pruning.Look([old], young, last=True)
    assert late > young


@pytest.mark.row("queue", "C119")
@pytest.mark.mysql("SQLite has no row locks")
@pytest.mark.postgres("SQLite has no row locks")
def test_a_job_that_somebody_holds_stays_until_the_next_run(made: Finished) -> None:
    held, free = made("dead", 91 * DAY, count=2)
    first, second = made("succeeded", 91 * DAY, count=2)
    with row_held(held), row_held(first):
        counts = retention.prune()
    assert counts == {**NOTHING, "succeeded": 1, "dead": 1}
    assert remaining() == [held, first]
    retention.prune()
    assert remaining() == []
    assert free
    assert second


@pytest.mark.row("queue", "C119")
def test_a_retry_that_meets_a_prune_waits_and_finds_the_job_gone(
    made: Finished, failpoint: FailPoint, aside: Aside
) -> None:
    (job,) = made("dead", 91 * DAY)
    gate = Gate(first_only=True)
    failpoint("prune.deleted", gate)
    prune = aside(retention.prune)
    gate.wait_reached()
    retry = aside(lambda: retry_job(job))
    assert not retry.ends_within(0.1)
    gate.open()
    assert prune.result()["dead"] == 1
    assert retry.result() is None


@pytest.mark.row("queue", "C119")
def test_a_job_revived_between_look_and_lock_is_kept(made: Finished) -> None:
    (job,) = made("dead", 91 * DAY)
    store = store_for("default")
    cutoffs = pruning.Cutoffs(None, None, now("default") - 90 * DAY)
    look = pruning.look_at_dead(store, cutoffs, None)
    assert look.ids == [job]
    retry_job(job)
    assert pruning.delete(store, look.ids, cutoffs) == {}
    assert remaining() == [job]


@pytest.mark.row("queue", "C119")
def test_prune_and_retry_at_once_neither_fail_nor_lose(made: Finished, aside: Aside) -> None:
    ids = made("dead", 91 * DAY, count=300)

    def revive() -> int:
        changed = 0
        for at in range(0, 300, 10):
            changed += retry_jobs(ids[at : at + 10]).changed
        return changed

    calls = [aside(retention.prune), aside(revive), aside(retention.prune)]
    first, revived, second = [call.result() for call in calls]
    assert first["dead"] + second["dead"] + revived == 300
    assert Job.objects.filter(state="ready").count() == revived
    # What was skipped because somebody held it goes with the next run.
    retention.prune()
    assert Job.objects.count() == revived


def test_a_started_worker_deletes_old_jobs_a_batch_a_pass(
    made: Finished, make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "BATCH", 10)
    monkeypatch.setattr(retention, "EVERY", 0.0)
    made("succeeded", 8 * DAY, count=35)
    made("dead", 91 * DAY, count=15)
    worker = make_worker(poll=0.01, max_poll=10.0)
    worker.run_once()
    assert Job.objects.count() == 50
    worker.start()
    wait_until(lambda: not Job.objects.exists())


def test_a_worker_deletes_at_most_once_a_minute(made: Finished) -> None:
    upkeep = retention.Upkeep(store_for("default"))
    made("succeeded", 8 * DAY)
    with statements() as texts:
        upkeep.step()
    assert texts == []
    assert not upkeep.busy
    assert retention.EVERY == 60.0


def test_an_error_ends_a_workers_run_and_not_its_pass(
    made: Finished,
    failpoint: FailPoint,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(retention, "EVERY", 0.0)
    (job,) = made("dead", 91 * DAY)
    upkeep = retention.Upkeep(store_for("default"))

    def broken() -> None:
        raise ValueError("no")

    failpoint("prune.selected", broken)
    with caplog.at_level(logging.ERROR):
        for _ in range(10):
            upkeep.step()
    assert "cannot be deleted" in caplog.text
    assert remaining() == [job]
    failpoint("prune.selected", lambda: None)
    for _ in range(10):
        upkeep.step()
    assert remaining() == []


def test_inside_a_transaction_of_the_caller_all_is_undone_with_it(made: Finished) -> None:
    (job,) = made("dead", 91 * DAY)
    with transaction.atomic():
        assert retention.prune()["dead"] == 1
        transaction.set_rollback(True)
    assert remaining() == [job]


def test_the_command_says_and_records_how_many_it_deleted(
    made: Finished, caplog: pytest.LogCaptureFixture
) -> None:
    made("dead", 91 * DAY, count=2)
    made("succeeded", 8 * DAY, count=3)
    out = StringIO()
    with caplog.at_level(logging.INFO, "gnl_django.audit"):
        call_command("gnl_prune", stdout=out)
    assert out.getvalue() == "Deleted: 3 succeeded, 0 canceled, 2 dead, 0 runs, 0 marks\n"
    assert "3 succeeded, 0 canceled, 2 dead" in caplog.text


def test_a_look_locks_nothing(made: Finished) -> None:
    made("ready", 8 * DAY, count=3)
    with statements() as texts:
        retention.prune()
    assert not [text for text in texts if "FOR UPDATE" in text or "DELETE" in text]
    assert vendor() == connection.vendor
