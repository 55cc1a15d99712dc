"""gnl_django.studio.jobs: who may see and do what, by every door, and what a page may hold."""

import re
from typing import Any

import pytest
from django.contrib import admin  # noqa: TID251 - what the project has registered
from django.contrib.admin.models import LogEntry  # noqa: TID251 - the record of acts
from django.db import connection, connections
from django.http import HttpResponse
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from gnl_django.models import Job
from gnl_django.studio.jobs import JobAdmin
from tests.studio.aliases import second_alias
from tests.studio.rows import fail, make, new_job, person, state_of, store

JOBS = "/admin/gnl_django/job/"

pytestmark = pytest.mark.django_db

ROLES = ("anonymous", "user", "staff without", "viewer", "staff with", "superuser", "half")


def sign_in(role: str, **options: Any) -> Client:
    """Return a client of somebody in a role."""
    client = Client(**options)
    acts = ("retry_job", "cancel_job")
    if role == "user":
        client.force_login(person(role, "view_job", *acts, staff=False))
    elif role == "staff without":
        client.force_login(person(role))
    elif role == "viewer":
        client.force_login(person(role, "view_job"))
    elif role == "staff with":
        client.force_login(person(role, "view_job", *acts))
    elif role == "half":  # may act, but not see
        client.force_login(person(role, *acts))
    elif role == "superuser":
        user = person(role)
        user.is_superuser = True
        user.save()
        client.force_login(user)
    return client


def path(job: Job, op: str = "") -> str:
    return f"{JOBS}{job.pk}/op/{op}/" if op else f"{JOBS}{job.pk}/change/"


def ticked(*jobs: Job, op: str = "retry", **more: str) -> dict[str, Any]:
    """Return the form of the list with jobs ticked."""
    ids = [str(job.pk) for job in jobs]
    return {"action": f"{op}_selected", "index": "0", "_selected_action": ids, **more}


def stated(page: HttpResponse) -> dict[str, str]:
    """Return the hidden fields of a confirm page."""
    found = re.findall(r'name="(upper|as_of)" value="([^"]*)"', page.content.decode())
    return {name: value.replace("&#x2B;", "+") for name, value in found}


def told(response: Any) -> list[str]:
    return [str(message) for message in response.context["messages"]]


def messages() -> list[str]:
    return list(LogEntry.objects.order_by("pk").values_list("change_message", flat=True))


def looks(dead: Job) -> dict[str, str]:
    return {
        "list": JOBS,
        "detail": path(dead),
        "retry": path(dead, "retry"),
        "cancel": path(dead, "cancel"),
        "retry all": f"{JOBS}op/retry/?state=dead",
        "history": f"{JOBS}{dead.pk}/history/",
    }


@pytest.mark.row("security", "P2", "P3", "C2")
@pytest.mark.row("studio", "C44", "C45")
@pytest.mark.parametrize(
    ("role", "sees", "acts"),
    [
        ("anonymous", 302, 302),
        ("user", 302, 302),
        ("staff without", 403, 403),
        ("half", 403, 403),
        ("viewer", 200, 403),
        ("staff with", 200, 200),
        ("superuser", 200, 200),
    ],
)
def test_who_may_look_at_what(role: str, sees: int, acts: int) -> None:
    dead = make("dead")
    client = sign_in(role)

    found = {name: client.get(url).status_code for name, url in looks(dead).items()}

    assert found == {
        "list": sees,
        "detail": sees,
        "history": sees,
        "retry": acts,
        "cancel": acts,
        "retry all": acts,
    }
    assert state_of(dead) == "dead"
    assert messages() == []


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
        assert messages() == [effect]
    elif known:
        name = f"Can {op} jobs"
        assert [text.partition("; ids")[0] for text in messages()] == [
            f"Refused: {op}, no permission “{name}”"
        ]
        assert response.status_code == 403
    else:
        assert response.url.startswith("/admin/login/")
        assert messages() == []


@pytest.mark.row("security", "P2", "P3")
@pytest.mark.row("studio", "B21")
def test_who_may_not_act_sees_no_button_and_who_sees_nothing_no_app() -> None:
    dead = make("dead")
    words = ("Retry", ">Cancel<", "action-select", "op/retry", "op/cancel")
    viewer = sign_in("viewer")

    pages = [viewer.get(url).content.decode() for url in (f"{JOBS}?state=dead", path(dead))]

    assert not [word for page in pages for word in words if word in page]
    operator = sign_in("staff with")
    assert "op/retry" in operator.get(f"{JOBS}?state=dead").content.decode()
    index = sign_in("staff without").get("/admin/").content.decode()
    assert "Background work" not in index
    assert "Background work" in viewer.get("/admin/").content.decode()


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
    assert messages() == []


def sign_in_again(client: Client) -> Client:
    """Return the same session without the check of tokens."""
    other = Client()
    other.cookies = client.cookies
    return other


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


@pytest.mark.parametrize(
    "form",
    [
        {"action": "retry_selected", "index": "0", "_selected_action": ["x", "9" * 30, "-1", "٣"]},
        {"action": "retry_selected", "index": "0"},
        {"action": "retry_selected", "index": "x", "_selected_action": ["\x00"]},
        {"action": "delete_selected", "index": "0", "_selected_action": ["1"]},
        {"action": "no_such_action", "index": "7", "_selected_action": ["1"]},
        {"action": "retry_selected", "_selected_action": ["x"], "_save": "1"},
        {"action": "", "index": "0", "select_across": "x", "_selected_action": ["1"]},
        {},
    ],
)
def test_a_form_of_nonsense_has_no_effect_and_is_no_error(form: dict[str, Any]) -> None:
    dead = make("dead")

    response = sign_in("superuser").post(JOBS, form)

    assert response.status_code in (200, 302)
    assert state_of(dead) == "dead"


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


@pytest.mark.row("security", "T4")
@pytest.mark.parametrize("number", ["7777777", "x", "9" * 30, "%00", "../secret", "1/2"])
def test_a_job_that_is_not_there_is_told_so(number: str) -> None:
    client = sign_in("staff with")

    page = client.get(f"{JOBS}{number}/change/", follow=True)

    assert page.redirect_chain[0][0] == JOBS
    assert told(page)[0].startswith("Job ")
    assert told(page)[0].endswith(
        "does not exist or was purged (finished jobs are kept 7 days, dead ones 90)."
    )
    assert client.get(f"{JOBS}{number}/op/retry/").status_code == 404
    assert messages() == []
    assert client.post(f"{JOBS}{number}/op/retry/").status_code == 404
    assert messages()[0].startswith("Refused: retry, no such job")


@pytest.mark.parametrize("slug", ["discard", "Retry", "delete"])
def test_an_act_that_there_is_not_is_not_found(slug: str) -> None:
    dead = make("dead")
    client = sign_in("superuser")

    assert client.post(path(dead, slug)).status_code == 404
    assert client.post(f"{JOBS}op/{slug}/?state=dead").status_code == 404


@pytest.mark.row("security", "P1")
def test_every_action_names_its_own_permission() -> None:
    ours = {
        model: page
        for model, page in admin.site._registry.items()
        if model._meta.app_label == "gnl_django"
    }
    assert Job in ours
    for page in ours.values():
        for name in page.actions:
            needed = getattr(page, name).allowed_permissions
            assert needed
            assert "view" not in needed


@pytest.mark.row("security", "P1")
def test_a_projects_site_wide_actions_are_not_offered_for_jobs() -> None:
    def export_everything(page: Any, request: Any, queryset: Any) -> None:
        raise AssertionError("never offered")

    admin.site.add_action(export_everything)
    try:
        dead = make("dead")
        client = sign_in("superuser")
        page = client.get(JOBS).content.decode()
        client.post(JOBS, {**ticked(dead), "action": "export_everything"})
    finally:
        admin.site.disable_action("export_everything")

    assert re.findall(r'<option value="(\w+_\w+)"', page) == ["retry_selected", "cancel_selected"]


@pytest.mark.row("security", "P4")
def test_nothing_of_a_job_can_be_edited_added_or_deleted() -> None:
    dead = make("dead")
    client = sign_in("superuser")

    page = client.get(path(dead)).content.decode()
    names = set(re.findall(r'<(?:input|select|textarea)[^>]* name="(\w+)"', page))
    assert names == {"csrfmiddlewaretoken"}
    assert client.post(path(dead), {"state": "ready"}).status_code == 403
    assert client.post(f"{JOBS}add/", {"kind": "x"}).status_code == 403
    assert client.post(f"{JOBS}{dead.pk}/delete/", {"post": "yes"}).status_code == 403
    assert state_of(dead) == "dead"


@pytest.mark.row("security", "C1", "N9")
@pytest.mark.row("studio", "C13")
def test_looking_writes_nothing_and_locks_nothing() -> None:
    dead = make("dead")
    fail(dead)
    client = sign_in("superuser")
    for url in looks(dead).values():
        for method in (client.get, client.head):
            with CaptureQueriesContext(connection) as captured:
                assert method(url).status_code == 200
            texts = [entry["sql"].upper() for entry in captured]
            assert len(texts) <= 11
            assert not [text for text in texts if not text.startswith("SELECT")]
            assert not [text for text in texts if "FOR UPDATE" in text]


@pytest.mark.row("security", "C6", "X7")
def test_pages_are_not_kept_and_not_framed() -> None:
    dead = make("dead")
    for url in looks(dead).values():
        response = sign_in_once().get(url)
        assert "no-store" in response["Cache-Control"]
        assert response["X-Frame-Options"] == "DENY"


def sign_in_once() -> Client:
    """Return a superuser's client, also when there is one already."""
    from django.contrib.auth.models import User

    user = User.objects.filter(username="superuser").first()
    if user is None:
        return sign_in("superuser")
    client = Client()
    client.force_login(user)
    return client


@pytest.mark.row("security", "P5")
def test_every_view_of_ours_asks_the_site_and_stands_outside_a_requests_transaction() -> None:
    page = JobAdmin(Job, admin.site)
    ours = [pattern for pattern in page.get_urls() if "_op" in (pattern.name or "")]

    assert [pattern.name for pattern in ours] == ["gnl_django_job_op_many", "gnl_django_job_op"]
    for pattern in ours:
        assert (
            None in pattern.callback._non_atomic_requests or pattern.callback._non_atomic_requests
        )
        assert not getattr(pattern.callback, "csrf_exempt", False)
        request = RequestFactory().get("/")
        request.user = type("Nobody", (), {"is_active": False, "is_staff": False})()
        assert pattern.callback(request, slug="retry", object_id="1").status_code == 302


@pytest.mark.row("studio", "C68")
@pytest.mark.urls("tests.studio.urls")
def test_every_link_stays_on_its_own_site_and_no_id_is_localized(settings: Any) -> None:
    settings.USE_THOUSAND_SEPARATOR = True
    settings.LANGUAGE_CODE = "de"
    settings.USE_TZ = False
    jobs = [make("dead", pk=1_234_567 + at) for at in range(60)]
    fail(jobs[0])
    client = sign_in("superuser")
    root = "/back/office/gnl_django/job/"
    pages = [
        client.get(url).content.decode()
        for url in (
            f"{root}?state=dead",
            f"{root}{jobs[0].pk}/change/",
            f"{root}{jobs[0].pk}/op/retry/",
            f"{root}op/retry/?state=dead",
        )
    ]

    for page in pages:
        assert not re.findall(r'(?:href|action|formaction)="/admin/', page)
        assert "1.234" not in page
    assert client.post(f"{root}{jobs[0].pk}/op/retry/").url == f"{root}{jobs[0].pk}/change/"
    missing = client.get(f"{root}77/change/", follow=True)
    assert missing.redirect_chain == [(root, 302)]


@pytest.mark.django_db(transaction=True)
def test_jobs_are_read_and_acted_on_where_the_queue_is(settings: Any) -> None:
    settings.GNL = {"DATABASE": "jobs"}
    dead = make("dead")
    fail(dead)
    client = sign_in("superuser")
    with second_alias("jobs") as alias:
        with (
            CaptureQueriesContext(connections[alias]) as there,
            CaptureQueriesContext(connection) as here,
        ):
            for url in looks(dead).values():
                assert client.get(url).status_code == 200
            response = client.post(path(dead, "retry"))
        assert response.status_code == 302

    assert state_of(dead) == "ready"
    assert len([entry for entry in there if "gnl_django_job" in entry["sql"]]) >= 10
    assert not [entry for entry in here if "gnl_django_job" in entry["sql"]]


def test_the_links_by_name_are_those_of_the_pages() -> None:
    assert reverse("admin:gnl_django_job_op", args=[7, "retry"]) == f"{JOBS}7/op/retry/"
    assert reverse("admin:gnl_django_job_op_many", args=["retry"]) == f"{JOBS}op/retry/"
