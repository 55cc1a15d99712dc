"""Lists of jobs: whose they are, in which order, each once, and nothing of their contents."""

import base64
import json
from collections.abc import Callable
from datetime import UTC
from itertools import chain
from typing import Any

import pytest

from gnl_django import JobKind, Page, enqueue_many, list_all_jobs, list_jobs
from gnl_django.models import Job
from gnl_django.queue import listing
from tests.conformance import support_claim as s
from tests.conformance.conftest import Declare, MakeWorker
from tests.conformance.helpers import fail, statements
from tests.support import vendor

pytestmark = pytest.mark.django_db(transaction=True)

Kind = JobKind[Any]
#: By code point; neither by alphabet nor by any language.
ORGS = ["A", "Z", "a", "a b", "b", "Ä", "ä", "一", "😀"]


def pages(
    call: Callable[..., Page], *, between: Callable[[], object] = lambda: None, **arguments: Any
) -> list[list[int]]:
    """Return the ids of each page; `between` is called after each."""
    found, cursor = [], None
    while True:
        page = call(cursor=cursor, **arguments)
        found.append([item.id for item in page.items])
        cursor = page.next_cursor
        if cursor is None:
            return found
        between()


def ids(call: Callable[..., Page], **arguments: Any) -> list[int]:
    """Return the ids of all pages."""
    return list(chain.from_iterable(pages(call, **arguments)))


@pytest.mark.row("queue", "C121")
def test_a_list_without_org_holds_the_ownerless_jobs_only(kind: Kind) -> None:
    ownerless = kind.enqueue_many([1, 2])
    acme = kind.enqueue_many([3, 4], org="acme")
    kind.enqueue(org="ACME")
    assert ids(list_jobs) == ownerless
    assert ids(list_jobs, org="acme") == acme
    assert ids(list_jobs, org="nobody") == []


def test_an_empty_table_gives_an_empty_last_page() -> None:
    assert list_jobs() == list_all_jobs() == Page([], None)


@pytest.mark.row("queue", "C122")
@pytest.mark.parametrize("count", [4, 5, 6])
def test_every_page_is_full_and_the_last_has_no_cursor_even_when_full(
    kind: Kind, count: int
) -> None:
    made = kind.enqueue_many(range(count), org="acme")
    found = pages(list_jobs, org="acme", limit=3)
    assert found == [made[:3], made[3:]]
    assert pages(list_all_jobs, limit=3) == found


@pytest.mark.row("queue", "C122")
def test_a_page_holds_fifty_jobs_unless_told_otherwise_and_200_at_most(kind: Kind) -> None:
    kind.enqueue_many(range(201))
    assert [len(page) for page in pages(list_jobs)] == [50, 50, 50, 50, 1]
    assert [len(page) for page in pages(list_jobs, limit=200)] == [200, 1]


@pytest.mark.row("queue", "C123")
def test_all_jobs_come_ownerless_first_then_by_the_code_points_of_org(kind: Kind) -> None:
    made = {org: [kind.enqueue(org=org or None)] for org in ["b", "", *reversed(ORGS)]}
    for org in ["a", "", "Z"]:
        made[org].append(kind.enqueue(org=org or None))
    made["b"] = [job.id for job in Job.objects.filter(org="b").order_by("id")]
    expected = list(chain.from_iterable(made[org] for org in ["", *ORGS]))
    for limit in (1, 2, 3, 200):
        assert ids(list_all_jobs, limit=limit) == expected
    assert [item.org for item in list_all_jobs().items[:3]] == [None, None, "A"]


@pytest.mark.row("queue", "C124")
@pytest.mark.parametrize("call", [list_jobs, list_all_jobs])
def test_jobs_that_come_during_a_listing_do_not_appear_in_it(
    kind: Kind, call: Callable[..., Page]
) -> None:
    org = {"org": "m"} if call is list_jobs else {}
    before = kind.enqueue_many(range(10), org="m")

    def produce() -> None:
        for name in ("a", "m", "z"):
            kind.enqueue_many(range(3), org=name)

    assert ids(call, between=produce, limit=3, **org) == before
    assert len(ids(call, limit=200, **org)) > len(before)


@pytest.mark.row("queue", "C125")
def test_pruning_during_a_listing_shifts_nothing(kind: Kind) -> None:
    made = enqueue_many(
        [{"kind": kind, "options": {"org": org}} for org in "aabbccdd" for _ in range(2)]
    )
    order = list(Job.objects.order_by("org", "id").values_list("id", flat=True))
    seen = list_all_jobs(limit=5)
    assert [item.id for item in seen.items] == order[:5]
    # Behind the cursor, the cursor's own row, and in front of it.
    gone = {order[0], order[4], order[5], order[9], order[15]}
    Job.objects.filter(id__in=gone).delete()
    assert _rest(seen) == [job for job in order[5:] if job not in gone]
    assert len(made) == 16


def _rest(page: Page) -> list[int]:
    found: list[int] = []
    while page.next_cursor is not None:
        page = list_all_jobs(limit=5, cursor=page.next_cursor)
        found += [item.id for item in page.items]
    return found


@pytest.mark.row("queue", "C126")
def test_a_list_shows_nothing_of_payload_result_or_error(
    declare: Declare, make_worker: MakeWorker
) -> None:
    kind = declare("t.fails", fail, max_attempts=3, retry_delay=60, priority=7)
    job_id = kind.enqueue({"password": "x"}, org="acme", queue="slow", meta={"m": 1})
    make_worker(("slow",)).run_once()
    (item,) = list_jobs(org="acme").items
    job = Job.objects.get(id=job_id)
    assert item == listing.JobSummary(
        id=job_id,
        kind="t.fails",
        state="scheduled",
        attempt=1,
        max_attempts=3,
        org="acme",
        queue="slow",
        priority=7,
        run_at=job.run_at,
        enqueued_at=job.enqueued_at,
    )
    assert item.run_at.tzinfo is UTC
    assert item.enqueued_at.tzinfo is UTC
    assert list_all_jobs().items == [item]


def test_the_state_is_that_of_the_pages_moment(kind: Kind, make_worker: MakeWorker) -> None:
    kind.enqueue_many(range(2))
    first = list_jobs(limit=1)
    make_worker().run_until_idle()
    second = list_jobs(limit=1, cursor=first.next_cursor)
    assert [first.items[0].state, second.items[0].state] == ["ready", "succeeded"]


def test_filters_are_joined_and_a_cursor_keeps_to_them(declare: Declare) -> None:
    one, two = declare("t.one"), declare("t.two")
    for _ in range(3):
        one.enqueue(org="a")
        two.enqueue(org="a")
        one.enqueue(org="a", queue="slow")
        one.enqueue(org="a", delay=60)
        one.enqueue(org="b")
    wanted = list(Job.objects.filter(kind="t.one", queue="default", state="ready"))
    filters = {"kind": "t.one", "queue": "default", "state": "ready", "limit": 2}
    expected = [job.id for job in sorted(wanted, key=lambda job: (job.org, job.id))]
    assert ids(list_all_jobs, **filters) == expected
    assert ids(list_jobs, org="b", **filters) == [job.id for job in wanted if job.org == "b"]
    assert ids(list_all_jobs, state="dead") == []


@pytest.mark.parametrize("call", [list_jobs, list_all_jobs])
def test_a_call_looks_at_a_bounded_number_of_rows_and_goes_on_behind_them(
    declare: Declare, monkeypatch: pytest.MonkeyPatch, call: Callable[..., Page]
) -> None:
    monkeypatch.setattr(listing, "WINDOW", 10)
    common, rare = declare("t.common"), declare("t.rare")
    wanted = []
    for count in (12, 7, 30):
        common.enqueue_many(range(count))
        wanted.append(rare.enqueue())
    found = pages(call, kind="t.rare")
    assert list(chain.from_iterable(found)) == wanted
    assert [] in found
    window = 10 if call is list_jobs else 5
    assert len(found) == -(-(12 + 7 + 30 + 3) // window)


@pytest.mark.parametrize("call", [list_jobs, list_all_jobs])
def test_a_window_that_ends_with_the_last_job_is_the_last_page(
    declare: Declare, monkeypatch: pytest.MonkeyPatch, call: Callable[..., Page]
) -> None:
    monkeypatch.setattr(listing, "WINDOW", 10 if call is list_jobs else 20)
    declare("t.common").enqueue_many(range(10))
    declare("t.rare")
    assert pages(call, kind="t.rare") == [[]]
    assert pages(call, kind="t.common") == [list(Job.objects.values_list("id", flat=True))]


def test_a_rare_kind_behind_many_rows_costs_no_more_than_the_window() -> None:
    s.fill(25_000, "ready")
    s.fill(1, "ready", kind="t.rare")
    s.analyze()
    with statements() as texts:
        first = list_jobs(org="lane-0", kind="t.rare")
    assert first.items == []
    assert first.next_cursor is not None
    assert len([text for text in texts if "FROM gnl_django_job" in text]) == 3
    second = list_jobs(org="lane-0", kind="t.rare", cursor=first.next_cursor)
    assert len(second.items) == 1
    assert second.next_cursor is None


def test_an_unfiltered_page_is_one_read_an_org_beside_the_bound(kind: Kind) -> None:
    kind.enqueue_many(range(5))
    with statements() as texts:
        first = list_jobs(limit=2)
    assert len(texts) == 2
    with statements() as texts:
        list_jobs(limit=2, cursor=first.next_cursor)
    assert len(texts) == 1
    with statements() as texts:
        list_all_jobs()
    assert len(texts) == 3


def _cursor(*values: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")


@pytest.mark.row("queue", "C127")
@pytest.mark.parametrize("call", [list_jobs, list_all_jobs])
def test_wrong_arguments_are_refused(kind: Kind, call: Callable[..., Page]) -> None:
    for wrong in (
        {"limit": 0},
        {"limit": 201},
        {"limit": -1},
        {"kind": ""},
        {"kind": "a b"},
        {"queue": "*"},
        {"state": "gone"},
        {"cursor": ""},
        {"cursor": "x"},
        {"cursor": "ä"},
        {"cursor": "a" * 3_000},
        {"cursor": _cursor("jobs", 5, 1)},
    ):
        with pytest.raises(ValueError):  # noqa: PT011 - each for its own argument
            call(**wrong)
    for typed in ({"limit": True}, {"limit": "5"}, {"kind": 5}):
        with pytest.raises(TypeError):
            call(**typed)


@pytest.mark.row("queue", "C127")
def test_wrong_orgs_are_refused() -> None:
    for org in ("", " a", "a\n", "a" * 129):
        with pytest.raises(ValueError, match="org"):
            list_jobs(org=org)
    with pytest.raises(TypeError):
        list_jobs(org=0)  # type: ignore[arg-type]


@pytest.mark.row("queue", "C127")
def test_a_cursor_of_another_list_is_refused(kind: Kind) -> None:
    for org in (None, "a", "b"):
        kind.enqueue_many(range(3), org=org)
    own = list_jobs(org="a", limit=1).next_cursor
    every = list_all_jobs(limit=1).next_cursor
    ready = list_jobs(org="a", limit=1, state="ready").next_cursor
    assert own is not None
    assert ready is not None
    wrong: list[tuple[Callable[..., Page], dict[str, Any]]] = [
        (list_jobs, {"org": "b", "cursor": own}),
        (list_jobs, {"cursor": own}),
        (list_all_jobs, {"cursor": own}),
        (list_jobs, {"org": "a", "cursor": every}),
        (list_jobs, {"cursor": every}),
        (list_jobs, {"org": "a", "state": "ready", "cursor": own}),
        (list_jobs, {"org": "a", "cursor": ready}),
        (list_jobs, {"org": "a", "state": "dead", "cursor": ready}),
        (list_jobs, {"org": "a", "queue": "ready", "cursor": ready}),
    ]
    for call, arguments in wrong:
        with pytest.raises(ValueError, match="another list"):
            call(**arguments)
    # The number of jobs a page is no part of the list.
    assert len(list_jobs(org="a", limit=2, cursor=own).items) == 2


@pytest.mark.row("queue", "C127")
def test_a_forged_cursor_is_refused_or_shows_the_lists_own_jobs_only(kind: Kind) -> None:
    kind.enqueue_many(range(2), org="a")
    made = kind.enqueue_many(range(2), org="b")
    cursor = list_jobs(org="b", limit=1).next_cursor
    assert cursor is not None
    scope = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))[0]
    for forged in (
        (scope,),
        (scope, None, 1),
        (scope, 1, None),
        (scope, "1", 1),
        (scope, 1, 2**70),
    ):
        with pytest.raises(ValueError, match="cursor"):
            list_jobs(org="b", cursor=_cursor(*forged))
    page = list_jobs(org="b", cursor=_cursor(scope, 2**62, -5))
    assert [item.id for item in page.items] == made
    every = list_all_jobs(limit=1).next_cursor
    assert every is not None
    scope = json.loads(base64.urlsafe_b64decode(every + "=" * (-len(every) % 4)))[0]
    for org in (5, "a" * 129, "\ud800", "a\u0000"):
        with pytest.raises(ValueError, match=r"org|cursor"):
            list_all_jobs(cursor=_cursor(scope, 9, 0, org))


def test_the_longest_org_fits_into_a_cursor(kind: Kind) -> None:
    org = "😀" * 128
    made = kind.enqueue_many(range(2), org=org)
    assert ids(list_jobs, org=org, limit=1) == made
    assert ids(list_all_jobs, limit=1) == made


def test_a_cursor_is_url_safe_text(kind: Kind) -> None:
    kind.enqueue_many(range(2), org="ÿ~?>")
    cursor = list_all_jobs(limit=1).next_cursor
    assert cursor is not None
    assert cursor.replace("-", "a").replace("_", "a").isalnum()


@pytest.mark.postgres("only PostgreSQL has a time zone of the session")
def test_times_do_not_follow_the_sessions_zone(kind: Kind) -> None:
    from django.db import connection

    kind.enqueue()
    plain = list_jobs().items
    with connection.cursor() as cursor:
        cursor.execute("SET TIME ZONE 'Asia/Tokyo'")
    try:
        assert list_jobs().items == plain
    finally:
        connection.close()
    assert vendor() == "postgresql"
