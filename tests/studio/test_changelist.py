"""gnl_django.studio.changelist: every row once, whatever happens meanwhile, at a bounded price."""

import re
from collections.abc import Callable
from datetime import timedelta
from html import unescape

import pytest
from django.contrib.admin.sites import site  # noqa: TID251 - what the project has
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from gnl_django.models import Job
from gnl_django.studio import sources
from gnl_django.studio.jobs import HEAVY
from tests.studio.plans import bad_steps
from tests.studio.rows import EPOCH, make, new_job, person, store
from tests.support import vendor

JOBS = "/admin/gnl_django/job/"

pytestmark = pytest.mark.django_db


@pytest.fixture
def viewer(client: Client) -> Client:
    """Return a signed-in member of staff who may only look."""
    client.force_login(person("viewer", "view_job"))
    return client


def shown(page: str) -> list[int]:
    """Return the ids of a page's rows."""
    return [int(pk) for pk in re.findall(r'<a href="/admin/gnl_django/job/(\d+)/change/', page)]


def link(page: str, rel: str) -> str | None:
    """Return a page's link to its neighbour."""
    match = re.search(rf'<a rel="{rel}" href="([^"]*)"', page)
    return unescape(match[1]) if match else None


def get(client: Client, query: str = "") -> str:
    response = client.get(JOBS + query)
    assert response.status_code == 200
    return response.content.decode()


def walk(
    client: Client, query: str, rel: str = "next", between: Callable[[], object] = lambda: None
) -> list[list[int]]:
    """Return the rows of each page, following the links."""
    pages = []
    page = get(client, query)
    while True:
        pages.append(shown(page))
        between()
        following = link(page, rel)
        if following is None:
            return pages
        page = get(client, following)


@pytest.mark.row("studio", "C1")
def test_pages_hold_every_row_once_and_lead_back_to_the_same_rows(viewer: Client) -> None:
    ids = store([new_job() for _ in range(130)])[::-1]
    expected = [ids[:50], ids[50:100], ids[100:]]

    assert walk(viewer, "") == expected
    last = get(viewer, link(get(viewer, link(get(viewer), "next") or ""), "next") or "")
    second = get(viewer, link(last, "prev") or "")
    first = get(viewer, link(second, "prev") or "")
    assert [shown(first), shown(second), shown(last)] == expected
    assert link(first, "prev") is None


@pytest.mark.row("studio", "C2")
def test_rows_that_come_and_go_between_pages_repeat_and_lose_nothing(viewer: Client) -> None:
    ids = store([new_job() for _ in range(130)])[::-1]

    def meddle() -> None:
        store([new_job() for _ in range(3)])
        Job.objects.filter(pk=ids[49]).delete()  # the row at which the cursor stands

    assert [row for page in walk(viewer, "", between=meddle) for row in page] == ids


@pytest.mark.row("studio", "C3")
@pytest.mark.parametrize("state", ["dead", "scheduled"])
def test_rows_of_one_instant_come_each_once(viewer: Client, state: str) -> None:
    ids = store([new_job(state) for _ in range(120)])

    pages = walk(viewer, f"?state={state}")

    assert [len(page) for page in pages] == [50, 50, 20]
    assert [row for page in pages for row in page] == (ids if state == "scheduled" else ids[::-1])


def test_the_newest_death_comes_first_and_the_next_due_time_comes_first(viewer: Client) -> None:
    late = make("dead", finished_at=EPOCH + timedelta(hours=9)).pk
    early = make("dead", finished_at=EPOCH + timedelta(hours=1)).pk
    far = make("scheduled", run_at=EPOCH + timedelta(hours=9)).pk
    near = make("scheduled", run_at=EPOCH + timedelta(hours=1)).pk

    assert shown(get(viewer, "?state=dead")) == [late, early]
    assert shown(get(viewer, "?state=scheduled")) == [near, far]


@pytest.mark.row("studio", "C5")
@pytest.mark.parametrize(
    "cursor", ["a~zz", "99", "b~W10", "a~", "x", sources.Source("jobs:dead").encode([1])]
)
def test_a_cursor_of_nothing_shows_the_first_page_and_says_so(viewer: Client, cursor: str) -> None:
    ids = store([new_job() for _ in range(60)])

    page = get(viewer, f"?p={cursor}")

    assert shown(page) == ids[:-51:-1]
    assert "That page link is not valid; this is the first page." in page


@pytest.mark.row("studio", "C6")
def test_filters_and_tabs_do_not_carry_the_page(viewer: Client) -> None:
    store([new_job() for _ in range(60)])
    page = get(viewer, link(get(viewer), "next") or "")

    tabs = re.findall(r'href="(\?[^"]*)"', page.partition("gnl-tabs")[2].partition("</nav>")[0])
    assert len(tabs) == 7
    assert not [tab for tab in tabs if "p=" in tab]
    assert 'name="p"' not in page


def test_the_page_before_all_rows_is_the_first_one(viewer: Client) -> None:
    ids = store([new_job() for _ in range(60)])
    cursor = sources.Source("jobs:all").encode([ids[-1]])

    assert shown(get(viewer, f"?p=b~{cursor}")) == ids[:-51:-1]


def test_a_page_after_all_rows_leads_back(viewer: Client) -> None:
    ids = store([new_job() for _ in range(3)])
    page = get(viewer, f"?p=a~{sources.Source('jobs:all').encode([ids[0]])}")

    assert shown(page) == []
    assert link(page, "prev") is not None


@pytest.mark.row("studio", "C8")
def test_a_rare_kind_is_found_window_by_window(
    viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "WINDOW", 40)
    rare = store([new_job(kind="rare.kind"), *(new_job() for _ in range(119))])[0]

    pages, query = [], "?kind=rare.kind"
    while query:
        page = get(viewer, query)
        pages.append(page)
        query = link(page, "next") or ""

    assert [shown(page) for page in pages] == [[], [], [rare]]
    assert "Nothing found so far." in pages[0]
    assert f"0 found, searched as far as job {rare + 80}." in pages[0]
    assert "Search further" in pages[0]
    assert "Search further" not in pages[2]
    back = get(viewer, link(pages[2], "prev") or "")
    assert link(back, "prev") is not None
    assert walk(viewer, "?kind=rare.kind&queue=default")[-1] == [rare]


@pytest.mark.parametrize("window", [1, 7, 50, 51, 10_000])
def test_windows_of_any_size_lose_no_row(
    viewer: Client, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr(sources, "WINDOW", window)
    count = 30 if window < 10 else 130
    ids = store([new_job("dead", org=("acme", "globex")[at % 2]) for at in range(count)])
    wanted = list(Job.objects.filter(pk__in=ids, org="acme").order_by("-pk"))

    forward = [row for page in walk(viewer, "?state=dead&org=acme") for row in page]
    assert forward == [job.pk for job in wanted]
    oldest = sources.Source("jobs:dead", columns=("finished_at", "id")).encode([EPOCH, 1])
    backward = walk(viewer, f"?state=dead&org=acme&p=b~{oldest}", rel="prev")
    assert [row for page in backward[::-1] for row in page] == forward


@pytest.mark.parametrize("window", [20_000, 10])
def test_ready_jobs_that_have_been_left_behind_are_found(
    viewer: Client, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr("gnl_django.studio.store.COUNT_MAX", 4)
    monkeypatch.setattr(sources, "WINDOW", window)
    ids = store(
        [*(new_job("ready") for _ in range(55)), *(new_job("succeeded") for _ in range(30))]
    )

    pages = walk(viewer, "?state=ready")

    assert [row for page in pages for row in page] == ids[54::-1]
    assert len(pages) == (2 if window > 55 else 9), "many are read in windows, few whole"


@pytest.mark.row("studio", "C65")
@pytest.mark.parametrize(
    "query",
    [
        "?org__startswith=a",
        "?payload__contains=a",
        "?_facets=1",
        "?all=1",
        "?o=1.-2.x.99",
        "?e=1",
        "?_to_field=",
        "?_popup=1",
        "?state=%00&kind=%00&queue=%00&org=%00&q=%00&p=%00",
        "?state=" + "x" * 5_000,
        "?q=" + "9" * 5_000,
        "?q='%22%3Cscript%3E%25s%25%25%7B%7D",
        "?p=" + "9" * 5_000,
        "?p=a~" + "9" * 5_000,
        "?state=dead&state=ready",
        "?%00=1",
    ],
)
def test_no_query_string_is_an_error_or_counts_or_scans(viewer: Client, query: str) -> None:
    make()
    with CaptureQueriesContext(connection) as captured:
        page = get(viewer, query)

    assert "<script>%" not in page
    statements = [entry["sql"] for entry in captured]
    assert len(statements) <= 10
    assert not [text for text in statements if " OFFSET " in text and "LIMIT 1 " not in text]


def test_a_field_to_point_at_is_refused(viewer: Client) -> None:
    assert viewer.get(JOBS + "?_to_field=payload").status_code == 400


def test_a_filter_that_is_not_offered_is_named(viewer: Client) -> None:
    page = get(viewer, "?org__startswith=a&state=lost")

    assert "Ignored filter org__startswith." in page
    assert "Ignored filter state." in page


@pytest.mark.row("studio", "C12")
@pytest.mark.row("security", "N1", "N9", "C1")
@pytest.mark.parametrize(
    "query",
    ["", "?state=dead", "?state=succeeded&kind=mail.send&org=acme", "?state=ready", "?q=some-key"],
)
def test_a_list_is_at_most_ten_reads_and_none_is_heavy(viewer: Client, query: str) -> None:
    store([new_job(state, org="acme") for state in ("ready", "dead", "succeeded") * 60])
    with CaptureQueriesContext(connection) as captured:
        get(viewer, query)

    assert len(captured) <= 10
    for entry in captured:
        text = entry["sql"].upper()
        assert text.startswith("SELECT"), "a page that is looked at writes nothing"
        assert "FOR UPDATE" not in text
        assert "DISTINCT" not in text
        assert "COUNT(" not in text or "LIMIT 1001" in text
        for column in HEAVY:  # but the beginning of an error may be cut out
            name = rf".GNL_DJANGO_JOB.\..{column.upper()}\b"
            assert not re.search(rf"(?<!SUBSTR\()(?<!LEFT\(){name}", text)


@pytest.mark.row("studio", "C14")
@pytest.mark.row("security", "N2")
@pytest.mark.django_db(transaction=True)  # MariaDB commits before it analyzes
def test_every_list_reads_by_an_index(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "WINDOW", 1_000)  # a small part of the table, as in production
    states = ["succeeded"] * 150 + ["canceled", "ready", "scheduled", "running", "dead"]
    spread = [
        new_job(
            states[at % len(states)],
            org=("acme", "globex")[at % 2],
            kind=f"kind.{at % 7}",
            run_at=EPOCH + timedelta(seconds=at),
        )
        for at in range(20_000)
    ]
    store(spread)
    with connection.cursor() as cursor:
        if vendor() == "mysql":
            cursor.execute("ANALYZE TABLE gnl_django_job PERSISTENT FOR ALL")
        else:
            cursor.execute("ANALYZE gnl_django_job")
    asked = ["", *(f"?state={state}" for state in dict.fromkeys(states))]
    asked += ["?org=acme", "?kind=kind.3", "?state=dead&kind=kind.3", "?q=77", "?q=key"]
    asked += ["?state=succeeded&org=acme&kind=kind.3", "?kind=none.such"]
    faults = []
    for query in asked:
        with CaptureQueriesContext(connection) as captured:
            page = get(viewer, query)
        following = link(page, "next")
        if following:
            with CaptureQueriesContext(connection) as more:
                get(viewer, following)
            statements = [*captured, *more]
        else:
            statements = [*captured]
        for entry in statements:
            if "gnl_django_job" in entry["sql"]:
                faults += [(query, step) for step in bad_steps(entry["sql"])]
    assert not faults


@pytest.mark.row("studio", "C62")
def test_kinds_and_queues_to_choose_from_are_those_of_recent_rows(viewer: Client) -> None:
    make(kind="os.system", queue="fast")

    page = get(viewer, "?kind=gone.kind")

    assert "<option>os.system</option>" in page
    assert "<option selected>gone.kind</option>" in page
    assert "<option>fast</option>" in page


@pytest.mark.row("studio", "C66")
def test_an_empty_list_says_what_is_missing(viewer: Client) -> None:
    assert "No job yet." in get(viewer)
    make()
    page = get(viewer, "?state=dead&kind=mail.send")
    assert "Nothing matches state dead, kind mail.send." in page
    assert '<a href="?state=dead">Clear filters</a>' in page


def test_failures_show_their_first_line_and_sensitive_ones_only_their_class(
    viewer: Client, client: Client
) -> None:
    make("dead", error="KeyError: order\nsecond line " + "x" * 9_000)
    make("scheduled", attempt=1, error_class="builtins.OSError", error="OSError: disk")
    make("dead", sensitive=True, error="KeyError: a-marker")
    make("succeeded", error_class="builtins.OSError", error="OSError: earlier")
    make("canceled", cancel_reason="not needed")

    page = get(viewer)

    assert "KeyError: order</span>" in page
    assert "second line" not in page
    assert "OSError: disk" in page
    assert "earlier" not in page
    assert "not needed" in page
    assert "a-marker" not in page
    assert "KeyError (text hidden)" in page
    client.force_login(person("doctor", "view_job", "view_payload"))
    assert "a-marker" in get(client)


def test_the_admin_names_the_list_and_the_rows(viewer: Client) -> None:
    job = make(kind="mail.send", org="acme")

    page = get(viewer)

    assert "<h1>Jobs</h1>" in page
    assert str(job) == f"mail.send #{job.pk}"
    assert site.is_registered(Job)
