"""gnl_django.studio.detail: all facts of a job, and nothing that must not be seen."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from gnl_django.models import Attempt, Job
from gnl_django.studio import detail
from gnl_django.studio.detail import Detail
from tests.studio.rows import EPOCH, TRACEBACK, fail, make, new_job

pytestmark = pytest.mark.django_db


def load(job: Job, *, open_to_user: bool = False) -> Detail:
    stored = Job.objects.defer("payload", "meta", "result", "progress", "error").get(pk=job.pk)
    return detail.load(stored, open_to_user=open_to_user)


def facts(found: Detail) -> dict[str, str]:
    return {fact.label: str(fact.value) for fact in found.facts}


def values(found: Detail) -> dict[str, str]:
    return {value.title: value.text for value in found.values}


def raw(job: Job, column: str, text: str) -> None:
    """Store a text as somebody else may have: not as canonical JSON."""
    with connection.cursor() as cursor:
        quoted = connection.ops.quote_name(column)
        cursor.execute(f"UPDATE gnl_django_job SET {quoted} = %s WHERE id = %s", [text, job.pk])


def test_every_fact_of_a_job_is_there() -> None:
    job = make(
        "running",
        org="acme",
        queue="mail",
        priority=5,
        key="order-7",
        dedup="d" * 64,
        run_id="job:7",
        scheduled_for=EPOCH,
        revivals=2,
        deferrals=1,
        note="result too large",
        error_class="builtins.KeyError",
        error_key="0123456789abcdef",
        cancel_requested_at=EPOCH,
        cancel_reason="vendor down",
    )

    found = load(job)

    shown = facts(found)
    assert shown["Organization"] == "acme"
    assert shown["Attempt"] == "1 of 5"
    assert (shown["Retried by hand"], shown["Deferred"]) == ("2 times", "once")
    assert shown["Enqueued"].startswith("2026-11-01 00:00:00 UTC (")
    for label in ("Slot", "Run at", "Started", "Lease until", "Stop asked"):
        assert " UTC (" in shown[label]
    assert "Finished" not in shown
    assert (shown["Key"], shown["Run"]) == ("order-7", "job:7")
    assert (shown["Worker"], shown["Note"]) == ("w/host/1/abcdef", "result too large")
    assert found.note == "The handler was asked to stop: vendor down"


def test_what_a_job_does_not_have_is_left_out() -> None:
    found = load(make("ready", payload=None))

    assert set(facts(found)) == {
        *("Kind", "Queue", "Organization", "Attempt", "Priority", "Enqueued", "Run at"),
    }
    assert (found.values, found.failure, found.attempts, found.note) == ([], "", [], "")


@pytest.mark.row("security", "D10")
def test_of_a_claim_token_only_eight_characters_are_shown() -> None:
    job = make("running")
    attempt = fail(job)

    found = load(job)

    assert facts(found)["Claim"] == f"{job.claim_token[:8]}…"
    assert found.attempts[0].token == attempt.claim_token[:8]


def test_values_are_shown_as_indented_json_with_their_secrets_hidden() -> None:
    job = make(
        "succeeded",
        payload={"to": "ä", "auth": {"token": "t"}},
        result=[1],
        progress={"done": 1, "total": 2, "message": ""},
        meta={"traceparent": "00-1"},
    )

    found = values(load(job))

    assert found["payload"] == '{\n  "auth": {\n    "token": "***"\n  },\n  "to": "ä"\n}'
    assert (found["result"], found["meta"]) == ("[\n  1\n]", '{\n  "traceparent": "00-1"\n}')
    assert '"done": 1' in found["progress"]


@pytest.mark.row("studio", "C48")
@pytest.mark.row("security", "D7")
def test_of_a_sensitive_job_others_see_the_class_of_the_error_alone() -> None:
    secret = {name: {"a": "a-marker"} for name in ("payload", "result", "progress", "meta")}
    job = make("dead", sensitive=True, error="KeyError: a-marker", **secret)
    fail(job, message="KeyError: a-marker", traceback="a-marker")

    found = load(job)

    assert "a-marker" not in repr(found)
    assert set(values(found).values()) == {"*** (sensitive)"}
    assert {value.note for value in found.values} == {detail.NEEDS_RIGHT}
    assert (found.failure, found.error, found.hidden) == ("KeyError", "", detail.NEEDS_RIGHT)


def test_who_has_the_right_sees_sensitive_values_but_no_secrets() -> None:
    job = make("dead", sensitive=True, payload={"a": "a-marker", "token": "t"}, error="a-marker")
    fail(job, message="a-marker", traceback="a-marker")

    found = load(job, open_to_user=True)

    assert values(found) == {"payload": '{\n  "a": "a-marker",\n  "token": "***"\n}'}
    assert (found.error, found.hidden) == ("a-marker", "")
    assert found.attempts[0].traceback == "a-marker"


@pytest.mark.row("security", "N4")
def test_a_large_value_is_cut_and_says_so() -> None:
    found = load(make(payload=["x" * 1_000_000])).values[0]

    assert len(found.text) == 64 * 1024
    assert found.note == "Cut: 64 of 976 KiB."


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ('{"a": a-marker', "The stored text is no JSON; it is not shown."),
        ("[" * 100_000, "The stored text is no JSON; it is not shown."),
        ("9" * 5_000, "The stored text is no JSON; it is not shown."),
        ('"' + "x" * 2_100_000 + '"', "Larger than 2 million characters; it is not shown."),
    ],
)
def test_a_text_that_we_did_not_store_is_not_shown(text: str, note: str) -> None:
    job = make()
    raw(job, "payload", text)

    found = load(job).values[0]

    assert (found.text, found.note) == ("", note)


def test_a_text_that_cannot_be_sent_is_mended() -> None:
    job = make()
    raw(job, "payload", r'["\ud800", "\u0000"]')

    assert load(job).values[0].text == '[\n  "?",\n  "\\u0000"\n]'


def test_the_failure_is_the_newest_attempts() -> None:
    job = make("dead", attempt=2)
    fail(job, 1, traceback="earlier")
    fail(job, 2, revival=1, outcome="lease_lost")

    found = load(job)

    assert (found.failure, found.error) == ("KeyError", "7")
    newest = found.newest
    assert newest is not None
    assert (newest.traceback, newest.outcome) == (TRACEBACK, "lease lost")
    assert (newest.revival, newest.lasted) == ("after 1 retry by hand", "3 s")
    assert [tried.attempt.number for tried in found.attempts] == [2, 1]


def test_a_job_that_succeeded_in_the_end_shows_its_failures_as_attempts_only() -> None:
    job = make("succeeded", error_class="builtins.KeyError", error="KeyError: 7")
    fail(job)

    found = load(job)

    assert (found.failure, found.newest) == ("", None)
    assert len(found.attempts) == 1


@pytest.mark.row("security", "N4")
def test_a_hundred_attempts_are_shown_and_their_texts_stay_within_a_page() -> None:
    job = make("dead")
    one = fail(job, traceback="t" * 32_000, message="m" * 8_000 + "\nmore")
    rest: list[Any] = []
    for number in range(2, 131):
        one.pk, one.number = None, number
        rest.append(Attempt(**{f.attname: getattr(one, f.attname) for f in Attempt._meta.fields}))
    Attempt.objects.bulk_create(rest)

    found = load(job)

    assert found.more_attempts
    assert [tried.attempt.number for tried in found.attempts] == list(range(130, 30, -1))
    shown = sum(len(tried.message) + len(tried.traceback) for tried in found.attempts)
    assert shown < 300 * 1024
    assert found.attempts[0].traceback == "t" * 32_000
    assert found.attempts[-1].note == "Traceback left out: the page would be too large."


@pytest.mark.row("studio", "C12")
def test_a_job_is_read_in_three_statements_more() -> None:
    job = make("dead")
    fail(job)
    stored = Job.objects.defer("payload", "meta", "result", "progress", "error").get(pk=job.pk)

    with CaptureQueriesContext(connection) as captured:
        detail.load(stored, open_to_user=False)

    assert len(captured) == 3
    assert all(entry["sql"].startswith("SELECT") for entry in captured)


def test_a_job_that_vanishes_while_it_is_read_is_shown_without_its_values() -> None:
    job = make(payload={"a": 1})
    Job.objects.filter(pk=job.pk).delete()

    found = detail.load(job, open_to_user=False)

    assert (found.values, found.error) == ([], "")


def test_a_finished_job_tells_when() -> None:
    job = new_job("canceled", cancel_reason="not needed", finished_at=EPOCH + timedelta(hours=1))
    job.save(force_insert=True)

    found = load(job)

    assert "canceled " in found.when
    assert found.note == "not needed"
