"""Walking jobs by (org, id), for lists: each read is bounded in SQL and served by one index.

A place in that order is reached by two ranges, the rest of one org and all orgs behind it, because
MySQL takes no range from a comparison of rows. Called by `queue.listing` (queue.md R49).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gnl_django.queue.store.base import Store

COLUMNS = (
    "id", "kind", "state", "attempt", "max_attempts", "org", "queue", "priority", "run_at",
    "enqueued_at",
)  # fmt: skip
TIMES = ("run_at", "enqueued_at")

#: The rest of one org, and its order. PostgreSQL must not see that the org is constant: by id alone
#: it walks the primary key, through everybody's rows. MariaDB sorts when it reads "org, id" here.
_REST = ("org = %(org)s AND id > %(after)s", "id")
_RESTS = {
    "postgresql": ("(org, id) > (%(org)s, %(after)s) AND org <= %(org)s", "org, id"),
    "mysql": _REST,
    "sqlite": _REST,
}
_BEHIND = ("org > %(org)s", "org, id")


@dataclass(frozen=True, slots=True)
class Stretch:
    """The jobs of `org` whose id is above `after`; with `after` None those of all orgs behind it.

    Ids above `bound` are left out: they came after the list's first page.
    """

    org: str
    after: int | None
    bound: int

    def text(self, store: Store, columns: str, tail: str) -> str:
        """Return the SELECT of the stretch in its order: one range of the index (org, id)."""
        where, order = _BEHIND if self.after is None else _RESTS[store.connection.vendor]
        return (
            f"SELECT {columns} FROM gnl_django_job {store.LISTED_BY} "
            f"WHERE {where} AND id <= %(bound)s ORDER BY {order} {tail}"
        )

    def params(self, **more: object) -> dict[str, object]:
        """Return the parameters of `text` and more."""
        place = {"org": self.org, "after": self.after, "bound": self.bound}
        return {name: value for name, value in place.items() if value is not None} | more


def newest(store: Store) -> int | None:
    """Return the largest id, None without a job; one statement."""
    found: int | None = store.read("SELECT max(id) FROM gnl_django_job", {})[0][0]
    return found


def jobs(
    store: Store, stretch: Stretch, filters: Mapping[str, str], *, window: int, limit: int
) -> list[tuple[Any, ...]]:
    """Return up to `limit` rows (COLUMNS) that meet `filters` among the stretch's first `window`.

    One statement. The filters are tested outside the window, so that a rare kind costs no more
    than `window` rows.
    """
    names = [
        f"({name}) AT TIME ZONE 'UTC' AS {name}"
        if name in TIMES and store.connection.vendor == "postgresql"
        else name
        for name in COLUMNS
    ]
    if filters:
        inner = stretch.text(store, ", ".join(names), "LIMIT %(window)s")
        tests = " AND ".join(f"{name} = %(with_{name})s" for name in filters)
        params = stretch.params(window=window, limit=limit)
        params |= {f"with_{name}": value for name, value in filters.items()}
        text = (
            f"SELECT {', '.join(COLUMNS)} FROM ({inner}) w WHERE {tests} "
            "ORDER BY org, id LIMIT %(limit)s"
        )
        rows = store.read(text, params)
    else:
        text = stretch.text(store, ", ".join(names), "LIMIT %(limit)s")
        rows = store.read(text, stretch.params(limit=limit))
    at = [COLUMNS.index(name) for name in TIMES]
    return [
        tuple(_utc(value) if place in at else value for place, value in enumerate(row))
        for row in rows
    ]


def edge(store: Store, stretch: Stretch, *, window: int) -> tuple[str, int] | None:
    """Return (org, id) of the last row of the window, None when no row stands behind it."""
    text = stretch.text(store, "org, id", "LIMIT 2 OFFSET %(offset)s")
    rows = store.read(text, stretch.params(offset=window - 1))
    return (rows[0][0], rows[0][1]) if len(rows) == 2 else None


def _utc(value: datetime | str) -> datetime:
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    return moment.replace(tzinfo=UTC)
