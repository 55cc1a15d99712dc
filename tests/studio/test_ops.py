"""gnl_django.studio.ops: one effect, one record, whatever the state and whoever else is there."""

import logging
import threading
from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, LogEntry  # noqa: TID251 - the record of acts
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from gnl_django.core import failpoints
from gnl_django.models import Job
from gnl_django.studio import ops
from gnl_django.studio.ops import OPS, Actor, Report
from tests.studio.aliases import second_alias
from tests.studio.rows import make, new_job, person, state_of, store

RETRY, CANCEL = OPS["retry"], OPS["cancel"]


@pytest.fixture
def ana(db: None) -> Actor:
    user = person("ana")
    return Actor(user.pk, user.get_username())


def records() -> list[tuple[str | None, str]]:
    """Return object id and message of each record, oldest first."""
    return list(LogEntry.objects.order_by("pk").values_list("object_id", "change_message"))


@pytest.mark.row("security", "P7")
@pytest.mark.row("studio", "C36")
def test_retry_revives_what_is_dead_or_canceled_and_says_why_not_the_rest(ana: Actor) -> None:
    dead, canceled, running = make("dead"), make("canceled"), make("running")
    gone = running.pk + 1_000

    report = ops.run(RETRY, [dead.pk, canceled.pk, running.pk, gone], ana, "default")

    assert report == Report({"queued again": 2}, {"running": 1, "gone": 1})
    assert [state_of(job) for job in (dead, canceled, running)] == ["ready", "ready", "running"]
    assert records() == [
        (str(dead.pk), "Retry: queued again"),
        (str(canceled.pk), "Retry: queued again"),
        (str(running.pk), "Retry skipped: running"),
        (str(gone), "Retry skipped: gone"),
    ]


@pytest.mark.row("studio", "C37")
def test_a_second_retry_has_no_effect_and_says_so(ana: Actor) -> None:
    dead = make("dead")

    first = ops.run(RETRY, [dead.pk], ana, "default")
    second = ops.run(RETRY, [dead.pk], ana, "default")

    assert (first.done, second.skipped) == ({"queued again": 1}, {"ready": 1})
    dead.refresh_from_db()
    assert (dead.revivals, dead.attempt) == (1, 0)
    assert [message for _, message in records()] == [
        "Retry: queued again",
        "Retry skipped: ready",
    ]


def test_cancel_cancels_what_waits_and_asks_what_runs(ana: Actor) -> None:
    ready, running, dead = make("ready"), make("running"), make("dead")

    report = ops.run(CANCEL, [ready.pk, running.pk, dead.pk], ana, "default")

    assert report == Report({"canceled": 1, "asked to stop": 1}, {"dead": 1})
    running.refresh_from_db()
    assert (state_of(ready), running.state) == ("canceled", "running")
    assert running.cancel_requested_at is not None


def test_a_record_names_user_job_and_effect(ana: Actor) -> None:
    dead = make("dead", kind="mail.send")

    ops.run(RETRY, [dead.pk], ana, "default")

    entry = LogEntry.objects.get()
    assert (entry.user_id, entry.action_flag, entry.object_repr) == (
        ana.pk,
        CHANGE,
        f"mail.send #{dead.pk}",
    )
    assert entry.get_edited_object() == dead


@pytest.mark.django_db(transaction=True)
def test_an_act_whose_record_cannot_be_written_is_undone() -> None:
    dead = make("dead")

    with pytest.raises(IntegrityError):
        ops.run(RETRY, [dead.pk], Actor(10**9, "nobody"), "default")

    assert state_of(dead) == "dead"
    assert records() == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.postgres("SQLite has no row locks")
@pytest.mark.mysql("SQLite has no row locks")
def test_a_row_that_another_transaction_holds_is_skipped_at_once() -> None:
    ana = person("ana")
    held, free = make("dead"), make("dead")
    locked, done = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            Job.objects.select_for_update().get(pk=held.pk)
            locked.set()
            done.wait(20)
        connection.close()

    other = threading.Thread(target=hold)
    other.start()
    assert locked.wait(20)
    report = ops.run(RETRY, [held.pk, free.pk], Actor(ana.pk, "ana"), "default")
    done.set()
    other.join()

    assert report == Report({"queued again": 1}, {"held by another transaction": 1})


@pytest.mark.django_db(transaction=True)
def test_many_are_done_in_chunks_each_with_its_record(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "CHUNK", 2)
    monkeypatch.setattr(ops, "ONE_BY_ONE", 4)
    ana = person("ana")
    ids = store([new_job("dead") for _ in range(5)])
    Job.objects.filter(pk=ids[1]).delete()

    report = ops.run(RETRY, ids, Actor(ana.pk, "ana"), "default", about="state dead")

    assert report == Report({"queued again": 4}, {"gone": 1})
    assert records() == [
        (None, f"Retry: 1 changed, 1 skipped; state dead, ids {ids[0]} to {ids[1]}"),
        (None, f"Retry: 2 changed, 0 skipped; state dead, ids {ids[2]} to {ids[3]}"),
        (None, f"Retry: 1 changed, 0 skipped; state dead, ids {ids[4]} to {ids[4]}"),
    ]


@pytest.mark.django_db(transaction=True)
def test_an_act_that_breaks_off_keeps_the_chunks_it_has_recorded(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.GNL = {"FAILPOINTS": True}
    monkeypatch.setattr(ops, "CHUNK", 2)
    ana = person("ana")
    ids = store([new_job("dead") for _ in range(6)])
    calls = []

    def break_off() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("out of power")

    failpoints.hook("bulk.chunk", break_off)
    try:
        with pytest.raises(RuntimeError, match="out of power"):
            ops.run(RETRY, ids, Actor(ana.pk, "ana"), "default")
    finally:
        failpoints.hook("bulk.chunk", None)

    assert [state_of(pk) for pk in ids] == ["ready"] * 2 + ["dead"] * 4
    assert [pk for pk, _ in records()] == [str(pk) for pk in ids[:2]]
    assert ops.run(RETRY, ids, Actor(ana.pk, "ana"), "default").done == {"queued again": 4}


def test_retrying_five_hundred_takes_a_handful_of_statements(ana: Actor) -> None:
    ids = store([new_job("dead") for _ in range(500)])

    with CaptureQueriesContext(connection) as captured:
        ops.run(RETRY, ids, ana, "default")

    assert len(captured) <= 16


@pytest.mark.row("studio", "C51")
@pytest.mark.django_db(transaction=True)
def test_a_log_on_another_database_is_written_after_the_act(settings: Any) -> None:
    settings.DATABASE_ROUTERS = ["tests.studio.aliases.AuditRouter"]
    user, dead = person("ana"), make("dead")
    with second_alias("audit"):
        report = ops.run(RETRY, [dead.pk], Actor(user.pk, "ana"), "default")

    assert not report.unrecorded
    assert records() == [(str(dead.pk), "Retry: queued again")]


@pytest.mark.row("studio", "C51")
@pytest.mark.django_db(transaction=True)
def test_an_act_stands_when_the_log_on_another_database_is_down(
    settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings.DATABASE_ROUTERS = ["tests.studio.aliases.AuditRouter"]
    user, dead = person("ana"), make("dead")
    caplog.set_level(logging.INFO, "gnl_django.audit")
    with second_alias("audit", NAME="/nowhere/at/all"):
        report = ops.run(RETRY, [dead.pk], Actor(user.pk, "ana"), "default")

    assert report.unrecorded
    assert state_of(dead) == "ready"
    assert f"Retry by 'ana': 1 of 1 jobs, ids {dead.pk}" in caplog.text
    assert "An act stands without its LogEntry" in caplog.text


@pytest.mark.row("security", "P8")
def test_a_refusal_leaves_one_record_whatever_the_number_of_jobs(ana: Actor) -> None:
    ops.refuse(RETRY, [7], ana, "no permission")
    ops.refuse(CANCEL, list(range(1, 31)), ana, "no permission")
    ops.refuse(CANCEL, [], ana, "no permission")

    first, second, third = LogEntry.objects.order_by("pk")
    assert (first.object_id, first.change_message) == ("7", "Refused: retry, no permission")
    assert (second.object_id, second.object_repr) == (None, "30 jobs")
    assert second.change_message.endswith(" 19, 20 and 10 more")
    assert third.object_repr == "0 jobs"


@pytest.mark.row("security", "D6", "I4")
def test_no_record_and_no_log_line_holds_anything_of_the_job(
    ana: Actor, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = {"payload": {"a": "a-marker"}, "meta": {"a": "a-marker"}, "error": "a-marker"}
    dead, ready = make("dead", **secret), make("ready", **secret)
    rogue = Actor(ana.pk, "eve\r\n\x1b[2Jroot")

    ops.run(RETRY, [dead.pk], rogue, "default")
    ops.run(CANCEL, [ready.pk], rogue, "default")
    ops.refuse(CANCEL, [ready.pk], rogue, "no permission")

    lines = [record.getMessage() for record in caplog.records if "audit" in record.name]
    assert len(lines) == 3
    assert "a-marker" not in str(records()) + str(lines)
    assert not [line for line in lines if set(line) & set("\r\n\x1b")]
