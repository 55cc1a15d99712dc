"""Jobs in the admin, as an operator meets them in a browser."""

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect

from gnl_django import Worker, job
from gnl_django.core import db
from gnl_django.models import Job
from gnl_django.queue.options import kinds
from tests.browser.conftest import OpenPage
from tests.studio import rows

JOBS = "/admin/gnl_django/job/"
KIND = "browser.report"
MARKUP = "nodes => nodes.map(node => node.outerHTML)"
HANDLERS = """nodes => nodes.flatMap(node => [...node.attributes])
    .filter(attribute => attribute.name.startsWith("on")).map(attribute => attribute.name)"""

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def broken() -> Iterator[set[str]]:
    """Declare a kind whose handler fails while the set has anything in it."""
    reasons = {"the printer is on fire"}

    @job(KIND, max_attempts=1)
    def report(payload: dict[str, object]) -> str:
        if reasons:
            raise RuntimeError(*reasons)
        return "printed"

    yield reasons
    kinds.forget(report.kind)


def sign_in(page: Page, user: User, path: str = JOBS) -> None:
    page.goto(path)
    page.get_by_label("Username").fill(user.username)
    page.get_by_label("Password").fill("pass")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()


def operator() -> User:
    return rows.person("ana", "view_job", "retry_job", "cancel_job")


@pytest.mark.row("studio", "B8")
def test_an_operator_finds_a_dead_job_reads_why_and_brings_it_back(
    open_page: OpenPage, broken: set[str]
) -> None:
    dead = kinds.find(KIND).enqueue({"month": 11, "apiKey": "hush"}, org="acme")
    Worker().run_until_idle()
    page = open_page()
    sign_in(page, operator())

    page.get_by_role("navigation", name="States").get_by_role("link", name="Dead").click()
    page.get_by_role("link", name="RuntimeError: the printer is on fire").click()

    expect(page.get_by_role("heading", name=f"{KIND} #{dead}")).to_be_visible()
    traceback = page.get_by_role("region", name="Traceback")
    expect(traceback).to_contain_text("raise RuntimeError(*reasons)")
    expect(page.get_by_role("region", name="Payload")).to_contain_text('"apiKey": "***"')
    broken.clear()
    page.get_by_role("button", name=f"Retry job {dead}").click()
    expect(page.get_by_text(f"Job {dead} queued again.")).to_be_visible()
    assert rows.state_of(dead) == "ready"

    assert Worker().run_until_idle() == 1
    page.reload()
    expect(page.locator(".gnl-head")).to_contain_text("Succeeded")
    expect(page.get_by_role("region", name="Result")).to_contain_text("printed")


def test_ticked_jobs_are_retried_from_the_list(open_page: OpenPage) -> None:
    jobs = [rows.make("dead") for _ in range(3)]
    page = open_page()
    sign_in(page, operator(), f"{JOBS}?state=dead")

    for job_ in jobs[:2]:
        page.locator(f"input.action-select[value='{job_.pk}']").check()
    page.get_by_label("Action:").select_option("retry_selected")
    page.get_by_title("Run the selected action").or_(
        page.get_by_role("button", name="Run", exact=True)
    ).click()

    expect(page.get_by_text("2 jobs queued again.")).to_be_visible()
    assert [rows.state_of(job_) for job_ in jobs] == ["ready", "ready", "dead"]
    assert page.url.endswith("?state=dead")


def test_all_dead_jobs_of_a_kind_are_retried_after_a_page_that_counts_them(
    open_page: OpenPage,
) -> None:
    rows.store([rows.new_job("dead", kind="mail.send") for _ in range(70)])
    other = rows.make("dead", kind="report.build")
    page = open_page()
    sign_in(page, operator(), f"{JOBS}?state=dead")

    page.get_by_label("Kind").select_option("mail.send")
    page.get_by_role("button", name="Apply").click()
    page.get_by_role("link", name="Retry all").click()
    expect(page.get_by_role("heading", name="Retry 70 jobs?")).to_be_visible()
    assert Job.objects.filter(state="dead").count() == 71, "a page that asks changes nothing"
    page.get_by_role("button", name="Retry 70 jobs").click()

    expect(page.get_by_text("70 jobs queued again.")).to_be_visible()
    expect(page.get_by_text("Nothing matches state dead, kind mail.send.")).to_be_visible()
    assert rows.state_of(other) == "dead"


@pytest.mark.row("studio", "B15")
def test_older_and_newer_walk_through_the_list(open_page: OpenPage) -> None:
    ids = rows.store([rows.new_job() for _ in range(120)])
    page = open_page()
    sign_in(page, operator())

    def shows(expected: list[int]) -> None:
        boxes = page.locator("input.action-select")
        expect(boxes.first).to_have_value(str(expected[0]))  # the page is there
        assert [int(box.get_attribute("value") or 0) for box in boxes.all()] == expected

    newest_first = ids[::-1]
    shows(newest_first[:50])
    page.get_by_role("link", name="Older").click()
    shows(newest_first[50:100])
    page.get_by_role("link", name="Older").click()
    shows(newest_first[100:])
    page.get_by_role("link", name="Newer").click()
    shows(newest_first[50:100])
    page.goto(f"{JOBS}?p=a~nonsense")
    expect(page.get_by_text("That page link is not valid")).to_be_visible()


def furnish() -> int:
    """Store jobs in every state, with the texts that try a layout; return a dead one's id."""
    now = db.now("default")
    minute = timedelta(minutes=1)
    long = "could not connect to server: Connection refused. Is the server running on that host? "
    made = [
        rows.new_job("succeeded", kind="report.build", attempt=1, finished_at=now - 90 * minute),
        rows.new_job("canceled", kind="report.build", cancel_reason="not needed any more"),
        rows.new_job("ready", kind="import.catalogue", org="globex", run_at=now - 12 * minute),
        rows.new_job("scheduled", org="acme", run_at=now + 64 * minute),
        rows.new_job(
            "scheduled",
            attempt=2,
            error_class="builtins.TimeoutError",
            error="TimeoutError: timed out",
            run_at=now + minute / 4,
        ),
        rows.new_job("running", kind="library.reindex", org="numpy", started_at=now - minute / 10),
        rows.new_job("dead", error=f"OperationalError: {long * 3}", org="x" * 128),
        rows.new_job("dead", kind="k" * 128, queue="q" * 64),
    ]
    rows.store([*made, *made[:3], *(rows.new_job("succeeded") for _ in range(9))])
    dead = rows.make(
        "dead",
        kind="library.reindex",
        org="lib2to3",
        attempt=2,
        max_attempts=2,
        started_at=now - 5 * minute,
        finished_at=now - 4 * minute,
        enqueued_at=now - 6 * minute,
        run_at=now - 5 * minute,
        worker="worker/build-7/4711/9f3a1c",
        error_class="builtins.SyntaxError",
        error="SyntaxError: Missing parentheses in call to 'print'. Did you mean print(...)?"
        " (py2_test_grammar.py, line 31)",
        payload={"path": "/srv/lib2to3/tests/data/py2_test_grammar.py", "token": "hush"},
        meta={"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
    )
    for number in (1, 2):
        rows.fail(
            dead,
            number,
            message=dead.error,
            error_class=dead.error_class,
            traceback=rows.TRACEBACK.replace(
                "KeyError: 7", "  " + "deep " * 60 + "\n" + dead.error
            ),
            worker=dead.worker,
            started_at=now - (6 - number) * minute,
            finished_at=now - (5.9 - number) * minute,
        )
    return int(dead.pk)


@pytest.mark.row("studio", "B1", "B2")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_no_page_scrolls_sideways_and_none_has_inline_style_or_script(
    open_page: OpenPage, width: int, dark: bool
) -> None:
    dead = furnish()
    page = open_page(width, dark=dark)
    sign_in(page, operator())
    pages = {
        "list": JOBS,
        "dead": f"{JOBS}?state=dead",
        "empty": f"{JOBS}?kind=none.such",
        "detail": f"{JOBS}{dead}/change/",
        "confirm": f"{JOBS}op/retry/?state=dead",
    }
    for name, path in pages.items():
        page.goto(path)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), name
        assert page.locator(".gnl").locator("[style], script, style").evaluate_all(MARKUP) == [], (
            name
        )
        assert page.locator("*").evaluate_all(HANDLERS) == [], name
        if directory := os.environ.get("GNL_SCREENSHOTS"):
            file = Path(directory) / f"{name}-{width}-{'dark' if dark else 'light'}.png"
            page.screenshot(path=file, full_page=name == "detail")
