"""Jobs in lists: what may be shown of them without payload, result or error text.

`list_jobs` and `list_all_jobs` are called by users, `summaries` by the worker for `on_error`. A
list is a snapshot of ids: what was stored before its first page appears once, what came later never
(queue.md R49).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from json import dumps

from gnl_django import conf
from gnl_django.core import paging
from gnl_django.queue import options as opt
from gnl_django.queue.models import Job, State
from gnl_django.queue.store import store_for
from gnl_django.queue.store.base import Store
from gnl_django.queue.store.walk import COLUMNS, Stretch, edge, jobs, newest

#: Rows that one call looks at, at most.
WINDOW = 20_000


@dataclass(frozen=True)
class JobSummary:
    """One job as lists and `on_error` see it (queue.md 3.4); org None when ownerless."""

    id: int
    kind: str
    state: str
    attempt: int
    max_attempts: int
    org: str | None
    queue: str
    priority: int
    run_at: datetime
    enqueued_at: datetime


@dataclass(frozen=True)
class Page:
    """Part of a list; `next_cursor` continues it, None after the last page."""

    items: list[JobSummary]
    next_cursor: str | None


def list_jobs(
    *,
    org: str | None = None,
    kind: str | None = None,
    queue: str | None = None,
    state: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
    using: str | None = None,
) -> Page:
    """Return one organization's jobs by id, a page at a time (queue.md R49).

    org: whose jobs (None: the ownerless ones, never everybody's). kind, queue, state: only such.
    limit: jobs a page, 1..200. cursor: `next_cursor` of the page before, with the same arguments.
    using: database alias (None: GNL["DATABASE"]).

    The first page fixes what is listed: no job enqueued later appears, and each one there is
    appears once unless it is pruned meanwhile; its state is that of its page's moment. A call looks
    at 20,000 jobs at most, so a page with filters may hold few or none and still be continued.

    Raises ValueError or TypeError for a wrong argument or a cursor of another list.
    """
    name = opt.check_org(org)
    filters = _filters(kind, queue, state)
    scope = _scope("org", name, filters)
    opt.check_integer("limit", limit, 1, paging.LIMIT_MAX)
    store = store_for(using or conf.settings().DATABASE)
    if cursor is None:
        after, bound = 0, newest(store)
    else:
        bound, after = _numbers(paging.decode(scope, cursor, (int, int)))
    if bound is None:
        return Page([], None)
    return _page(store, scope, [Stretch(name, after, bound)], filters, limit, window=WINDOW)


def list_all_jobs(
    *,
    kind: str | None = None,
    queue: str | None = None,
    state: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
    using: str | None = None,
) -> Page:
    """Return the jobs of all organizations: the ownerless first, then by org's code points, by id.

    For operators; never answer one organization's request with it. All else as `list_jobs`.
    """
    filters = _filters(kind, queue, state)
    scope = _scope("all", "", filters)
    opt.check_integer("limit", limit, 1, paging.LIMIT_MAX)
    store = store_for(using or conf.settings().DATABASE)
    if cursor is None:
        org, after, bound = "", 0, newest(store)
    else:
        values = paging.decode(scope, cursor, (int, int, str))
        bound, after = _numbers(values[:2])
        org = opt.check_org(values[2] or None)
    if bound is None:
        return Page([], None)
    stretches = [Stretch(org, after, bound), Stretch(org, None, bound)]
    return _page(store, scope, stretches, filters, limit, window=WINDOW // 2)


def summaries(ids: Sequence[int], *, using: str) -> dict[int, JobSummary]:
    """Return the present summaries of jobs by id; one query."""
    rows = Job.objects.using(using).filter(id__in=ids).values_list(*COLUMNS)
    return {row[0]: _summary(row) for row in rows}


def _page(
    store: Store,
    scope: str,
    stretches: Sequence[Stretch],
    filters: Mapping[str, str],
    limit: int,
    *,
    window: int,
) -> Page:
    """Walk the stretches until one row more than the page has is found, or a window is used up."""
    rows: list[tuple[object, ...]] = []
    for stretch in stretches:
        rows += jobs(store, stretch, filters, window=window, limit=limit + 1 - len(rows))
        items = [_summary(row) for row in rows[:limit]]
        last: tuple[str, int] | None = None
        if len(rows) > limit:
            last = (items[-1].org or "", items[-1].id)
        elif filters:
            last = edge(store, stretch, window=window)
        if last is not None:
            place = [last[1], last[0]] if len(stretches) > 1 else [last[1]]
            return Page(items, paging.encode(scope, [stretch.bound, *place]))
    return Page(items, None)


def _summary(row: Sequence[object]) -> JobSummary:
    values = dict(zip(COLUMNS, row, strict=True))
    return JobSummary(**{**values, "org": values["org"] or None})  # type: ignore[arg-type]


def _filters(kind: str | None, queue: str | None, state: str | None) -> dict[str, str]:
    filters = {}
    if kind is not None:
        filters["kind"] = opt.check_name("kind", kind, opt.KIND_MAX)
    if queue is not None:
        filters["queue"] = opt.check_name("queue", queue, opt.QUEUE_MAX)
    if state is not None:
        if state not in State.values:
            raise ValueError(f"state: {state!r} is none of {', '.join(State.values)}")
        filters["state"] = state
    return filters


def _scope(whose: str, org: str, filters: Mapping[str, str]) -> str:
    """Name a list; hashed, so that a cursor stays short whatever the names are."""
    text = dumps([whose, org, sorted(filters.items())])
    return f"jobs:{sha256(text.encode()).hexdigest()[:32]}"


def _numbers(values: Sequence[str | int | None]) -> tuple[int, int]:
    bound, after = values
    if not isinstance(bound, int) or not isinstance(after, int):
        raise ValueError("cursor: malformed, or made for another list")  # noqa: TRY004 - as all
    return bound, after
