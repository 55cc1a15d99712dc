"""gnl_django.studio.acts: who may do what by every door, and what becomes of each job."""

import re
from typing import Any

import pytest
from django.contrib import admin  # noqa: TID251 - what the project has registered
from django.test import RequestFactory
from django.urls import reverse

from gnl_django.models import Job
from gnl_django.studio.jobs import JobAdmin
from tests.studio.doors import (
    JOBS,
    ROLES,
    path,
    records,
    sign_in,
    sign_in_again,
    stated,
    ticked,
    told,
)
from tests.studio.rows import make, new_job, state_of, store

pytestmark = pytest.mark.django_db


@pytest.mark.row("security", "P2", "P8")
@pytest.mark.row("studio", "C45")
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("op", ["retry", "cancel"])
@pytest.mark.parametrize("door", ["button", "ticked", "all"])
def test_who_may_do_what_by_each_door(role: str, op: str, door: str) -> None:
    state, after = {"retry": ("dead", "ready"), "cancel": ("ready", "canceled")}[op]
    job = make(state)
    client = sign_in(role)
    if door == "button":
        response = client.post(path(job, op))
    elif door == "ticked":
        response = client.post(JOBS, ticked(job, op=op))
    else:
        form = {"upper": str(job.pk), "as_of": "2099-01-01T00:00:00Z"}
        response = client.post(f"{JOBS}op/{op}/?state={state}", form)

    may = role in ("staff with", "superuser")
    known = role not in ("anonymous", "user")
    assert response.status_code == (302 if may or not known else 403)
    assert state_of(job) == (after if may else state)
    if may:
        effect = {"retry": "Retry: queued again", "cancel": "Cancel: canceled"}[op]
        assert records() == [effect]
    elif known:
        name = f"Can {op} jobs"
        assert [text.partition("; ids")[0] for text in records()] == [
            f"Refused: {op}, no permission “{name}”"
        ]
        assert response.status_code == 403
    else:
        assert response.url.startswith("/admin/login/")
        assert records() == []


@pytest.mark.row("security", "C2", "C3")
@pytest.mark.row("studio", "C44")
def test_only_a_post_with_a_token_acts() -> None:
    dead = make("dead")
    client = sign_in("superuser", enforce_csrf_checks=True)

    for url in (path(dead, "retry"), f"{JOBS}op/retry/?state=dead", JOBS):
        assert client.post(url, ticked(dead)).status_code == 403
        assert client.get(url).status_code == 200
        assert client.head(url).status_code == 200
    for url in (path(dead, "retry"), f"{JOBS}op/retry/?state=dead"):
        for method in ("put", "patch", "delete", "options"):
            response = getattr(sign_in_again(client), method)(url)
            assert (response.status_code, response["Allow"]) == (405, "GET, HEAD, POST")
    assert state_of(dead) == "dead"
    assert records() == []


def test_the_buttons_post_with_a_token_to_pages_of_their_own() -> None:
    dead = make("dead")
    client = sign_in("staff with", enforce_csrf_checks=True)
    page = client.get(path(dead)).content.decode()
    form = page.partition('<form id="gnl-op" method="post">')[2]
    token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', form)
    target = re.search(r'form="gnl-op" formaction="([^"]+)" class="gnl-btn gnl-btn-retry"', page)
    assert token
    assert target

    response = client.post(target[1], {"csrfmiddlewaretoken": token[1]}, follow=True)

    assert response.redirect_chain == [(path(dead), 302)]
    assert told(response) == [f"Job {dead.pk} queued again."]
    again = client.get(path(dead)).content.decode()
    assert re.search(r'gnl-btn" disabled title="The job is ready">Retry', again)


@pytest.mark.row("studio", "C36", "C37")
@pytest.mark.row("security", "18", "P7")
def test_an_act_that_comes_too_late_says_how_things_stand() -> None:
    dead = make("dead")
    client = sign_in("staff with")

    client.post(path(dead, "retry"))
    second = client.post(path(dead, "retry"), follow=True)

    assert told(second)[-1] == f"Nothing changed: job {dead.pk} is ready."
    confirm = client.get(path(dead, "retry")).content.decode()
    assert "The job is ready; nothing would change." in confirm
    assert "<form method" not in confirm.partition('id="content-main"')[2]


@pytest.mark.row("security", "6")
def test_ticked_jobs_are_acted_on_and_each_is_accounted_for() -> None:
    dead, canceled, running = make("dead"), make("canceled"), make("running")
    gone = new_job(pk=running.pk + 100)
    client = sign_in("staff with")

    response = client.post(f"{JOBS}?state=dead", ticked(dead, canceled, running, gone), follow=True)

    assert response.redirect_chain == [(f"{JOBS}?state=dead", 302)]
    assert told(response) == ["2 jobs queued again. 2 skipped: 1 gone, 1 running."]
    assert [state_of(job) for job in (dead, canceled, running)] == ["ready", "ready", "running"]


def test_canceling_tells_what_waits_from_what_runs() -> None:
    jobs = [make("ready"), make("scheduled"), make("running")]

    response = sign_in("staff with").post(JOBS, ticked(*jobs, op="cancel"), follow=True)

    assert told(response) == ["1 job asked to stop. 2 jobs canceled."]


@pytest.mark.row("security", "P6", "17")
@pytest.mark.row("studio", "C38")
def test_all_that_match_are_acted_on_as_of_the_page_that_counted_them() -> None:
    ids = store([new_job("dead", kind=("mail.send", "report.build")[at % 2]) for at in range(120)])
    mails = ids[::2]
    client = sign_in("staff with")
    url = f"{JOBS}op/retry/?state=dead&kind=mail.send"
    page = client.get(url)
    assert "Retry 60 jobs?" in page.content.decode()
    assert f"All with state dead, kind mail.send, up to id {ids[-1]}." in page.content.decode()
    late = make("dead", kind="mail.send")
    Job.objects.filter(pk=mails[0]).delete()
    client.post(f"{JOBS}{mails[1]}/op/retry/")

    response = client.post(url, stated(page), follow=True)

    assert told(response)[-1] == "58 jobs queued again."
    assert response.redirect_chain == [(f"{JOBS}?state=dead&kind=mail.send", 302)]
    assert state_of(late) == "dead"
    assert Job.objects.filter(state="ready").count() == 59
    assert not Job.objects.filter(kind="report.build", state="ready").exists()


@pytest.mark.row("security", "P6")
def test_selecting_across_pages_asks_first_and_says_how_many() -> None:
    store([new_job("dead") for _ in range(60)])
    one = make("dead")
    form = ticked(one, select_across="1")

    response = sign_in("staff with").post(f"{JOBS}?state=dead", form, follow=True)

    assert response.redirect_chain == [(f"{JOBS}op/retry/?state=dead", 302)]
    assert "Retry 61 jobs?" in response.content.decode()
    assert Job.objects.filter(state="dead").count() == 61


def test_a_request_takes_so_many_jobs_and_says_that_there_are_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gnl_django.studio.ops.Cancel.limit", 3)
    store([new_job("ready") for _ in range(5)])
    client = sign_in("staff with")
    url = f"{JOBS}op/cancel/?state=ready"

    response = client.post(url, stated(client.get(url)), follow=True)

    assert told(response) == [
        "3 jobs canceled.",
        "More than 3 match: cancel all again for the rest.",
    ]
    assert Job.objects.filter(state="ready").count() == 2


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("", "Retry all: choose one of the states dead first."),
        ("?state=canceled", "Retry all: choose one of the states dead first."),
        ("?state=dead&kind=%00", "Retry all: the filter kind is not valid."),
        ("?state=dead&org__startswith=a", "Retry all: the filter org__startswith is not valid."),
    ],
)
def test_acting_on_all_is_refused_when_a_condition_is_missing_or_dropped(
    query: str, text: str
) -> None:
    dead = make("dead")
    client = sign_in("staff with")
    form = {"upper": str(dead.pk), "as_of": "2099-01-01T00:00:00Z"}

    for response in (client.get(f"{JOBS}op/retry/{query}", follow=True),
                     client.post(f"{JOBS}op/retry/{query}", form, follow=True)):  # fmt: skip
        assert told(response) == [text]
    assert state_of(dead) == "dead"


def test_a_form_that_states_nothing_acts_on_nothing() -> None:
    dead = make("dead")

    response = sign_in("staff with").post(f"{JOBS}op/retry/?state=dead", follow=True)

    assert told(response) == ["The form is not complete. Nothing was done."]
    assert state_of(dead) == "dead"


def test_a_page_that_counts_nothing_offers_nothing() -> None:
    page = sign_in("staff with").get(f"{JOBS}op/retry/?state=dead").content.decode()

    assert "Retry 0 jobs?" in page
    assert "No job matches; nothing would change." in page


@pytest.mark.parametrize("slug", ["discard", "Retry", "delete"])
def test_an_act_that_there_is_not_is_not_found(slug: str) -> None:
    dead = make("dead")
    client = sign_in("superuser")

    assert client.post(path(dead, slug)).status_code == 404
    assert client.post(f"{JOBS}op/{slug}/?state=dead").status_code == 404


@pytest.mark.row("security", "P5")
def test_every_view_of_ours_asks_the_site_and_stands_outside_a_requests_transaction(
    settings: Any,
) -> None:
    settings.GNL = {"DATABASE": "jobs"}
    page = JobAdmin(Job, admin.site)
    ours = [pattern for pattern in page.get_urls() if "_op" in (pattern.name or "")]

    assert [pattern.name for pattern in ours] == ["gnl_django_job_op_many", "gnl_django_job_op"]
    for pattern in ours:
        assert pattern.callback._non_atomic_requests == {"default", "jobs"}
        assert not getattr(pattern.callback, "csrf_exempt", False)
        request = RequestFactory().get("/")
        request.user = type("Nobody", (), {"is_active": False, "is_staff": False})()
        assert pattern.callback(request, slug="retry", object_id="1").status_code == 302


def test_the_links_by_name_are_those_of_the_pages() -> None:
    assert reverse("admin:gnl_django_job_op", args=[7, "retry"]) == f"{JOBS}7/op/retry/"
    assert reverse("admin:gnl_django_job_op_many", args=["retry"]) == f"{JOBS}op/retry/"
