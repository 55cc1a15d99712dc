"""gnl_django.studio.jobs: who may look at what, and what a page may hold and do."""

import re
from typing import Any

import pytest
from django.contrib import admin  # noqa: TID251 - what the project has registered
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext

from gnl_django.models import Job
from tests.studio.aliases import second_alias
from tests.studio.doors import JOBS, looks, path, records, sign_in, sign_in_once, ticked, told
from tests.studio.rows import fail, make, state_of

pytestmark = pytest.mark.django_db


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
    assert records() == []


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


@pytest.mark.row("security", "T4")
@pytest.mark.parametrize("number", ["7777777", "x", "9" * 30, "%00", "../secret", "1/2"])
def test_a_job_that_is_not_there_is_told_so(number: str) -> None:
    client = sign_in("staff with")

    page = client.get(f"{JOBS}{number}/change/", follow=True)

    assert page.redirect_chain[0][0] == JOBS
    assert told(page)[0].startswith("Job ")
    assert told(page)[0].endswith(
        "does not exist or was purged (finished jobs are kept 7 days, dead ones 90 days)."
    )
    assert client.get(f"{JOBS}{number}/op/retry/").status_code == 404
    assert records() == []
    assert client.post(f"{JOBS}{number}/op/retry/").status_code == 404
    assert records()[0].startswith("Refused: retry, no such job")


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
