"""What a user asked a list for, read from the query string and checked.

Called by the list and by the acts on all that match. Whatever is not offered is dropped and told,
so nothing in a URL becomes a lookup, an error or a scan (studio.md R33, R34, security.md N2).
"""

from dataclasses import dataclass, replace
from typing import TypeAlias

from django.db.models import QuerySet
from django.http import QueryDict
from django.utils.http import urlencode

from gnl_django.queue.models import Job, State
from gnl_django.queue.options import KIND_MAX, NAME, ORG_MAX, QUEUE_MAX, dedup

Jobs: TypeAlias = "QuerySet[Job]"

TEXT_MAX = 300
BIGGEST_ID = 2**63 - 1
#: Parameters that are no filters: Django's and the page's own.
OTHERS = frozenset({"p", "e", "o", "all", "_popup", "_facets", "_to_field", "_source_model"})


@dataclass(frozen=True)
class Filters:
    """The conditions of a list; empty text = no condition."""

    state: str = ""
    kind: str = ""
    queue: str = ""
    org: str = ""
    text: str = ""
    #: Names of parameters that were dropped.
    ignored: tuple[str, ...] = ()

    def apply(self, rows: Jobs) -> Jobs:
        """Return the rows that meet all conditions."""
        given = {"state": self.state, "kind": self.kind, "queue": self.queue, "org": self.org}
        rows = rows.filter(**{name: value for name, value in given.items() if value})
        return self._search(rows) if self.text else rows

    def _search(self, rows: Jobs) -> Jobs:
        """Return the rows with this id or this key: at most two, found by unique indexes.

        A key belongs to an organization: the one that is filtered by, else to no organization.
        """
        # By its hash and alone, never OR-ed with the id: each is one look into a unique index.
        keyed = rows.order_by().filter(dedup=dedup(self.org, self.text))
        ids = set(keyed.values_list("pk", flat=True))
        if (number := job_id(self.text)) is not None:
            ids.add(number)
        return rows.filter(pk__in=ids)

    def in_state(self, state: str) -> "Filters":
        """Return these conditions with another state."""
        return replace(self, state=state)

    def parameters(self) -> dict[str, str]:
        """Return the parameters of these conditions as a query string names them."""
        given = {
            "state": self.state,
            "kind": self.kind,
            "queue": self.queue,
            "org": self.org,
            "q": self.text,
        }
        return {name: value for name, value in given.items() if value}

    def query(self) -> str:
        """Return the query string of these conditions, with its "?"; "?" alone without any."""
        return "?" + urlencode(self.parameters())

    def words(self) -> str:
        """Return the conditions in words, "" without any."""
        parts = [
            self.state and f"state {self.state}",
            self.kind and f"kind {self.kind}",
            self.queue and f"queue {self.queue}",
            self.org and f"organization {self.org}",
            self.text and f"id or key “{self.text}”",
        ]
        return ", ".join(part for part in parts if part)


def read(query: QueryDict) -> Filters:
    """Return the filters of a query string; never raises."""
    good = {"state": _state, "kind": _kind, "queue": _queue, "org": _org, "q": _text}
    found: dict[str, str] = {}
    ignored = []
    for name in query:
        if name in OTHERS:
            continue
        value = (query.get(name) or "").strip()
        if name not in good:
            ignored.append(name)
        elif value and good[name](value):
            found["text" if name == "q" else name] = value
        elif value:
            ignored.append(name)
    return Filters(**found, ignored=tuple(name[:64] for name in ignored[:10]))


def job_id(text: str) -> int | None:
    """Return the id that `text` is, None when it is none (no other digits than 0-9, no sign)."""
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        return None
    number = int(text)
    return number if 0 < number <= BIGGEST_ID else None


def _state(value: str) -> bool:
    return value in State.values


def _kind(value: str) -> bool:
    return len(value) <= KIND_MAX and NAME.fullmatch(value) is not None


def _queue(value: str) -> bool:
    return len(value) <= QUEUE_MAX and NAME.fullmatch(value) is not None


def _org(value: str) -> bool:
    return len(value) <= ORG_MAX and value.isprintable()


def _text(value: str) -> bool:
    return len(value) <= TEXT_MAX and value.isprintable()
