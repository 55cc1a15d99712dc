"""`claim` and `frozen`: something noted once for all under a key, in the caller's transaction.

Outside and inside of runs; a run's own keys begin with its id (runs.md R23).
"""

from collections.abc import Callable
from typing import Any, Final

from gnl_django import conf
from gnl_django.runs import values
from gnl_django.runs.journal import journal_for
from gnl_django.runs.journal.base import Journal

#: No such mark; None is a value.
ABSENT: Final = object()


def claim(key: str, value: Any = True, *, using: str | None = None) -> bool:
    """Return True for the first caller with `key`, False for every other one, for ever.

    "For ever" ends after GNL["KEEP_MARKS"] (90 days). In the caller's transaction: rolled back, the
    key is free again. key: 1..255 printable characters; value: JSON, for people to look at.
    Raises ValueError, InvalidPayload (runs.md R23).
    """
    return claim_in(_journal(using), key_of(key), value)


def frozen(key: str, compute: Callable[[], Any], *, using: str | None = None) -> Any:
    """Return the value stored under `key`; `compute` gives it when there is none yet.

    Of several that compute at once one is kept, and all get it. What is kept is JSON; nothing is
    when `compute` raises. Raises ValueError, InvalidPayload (runs.md R23).
    """
    journal, name = _journal(using), key_of(key)
    found = look(journal, name)
    return freeze(journal, name, compute()) if found is ABSENT else found


def key_of(key: str, run_id: str = "") -> str:
    """Return a checked key, a run's own with its id before it."""
    whole = f"{run_id}:{values.check_text('key', key, values.MARK_MAX)}" if run_id else key
    return values.check_text("key", whole, values.MARK_MAX)


def claim_in(journal: Journal, key: str, value: Any) -> bool:
    """Claim a checked key."""
    return journal.claim_mark(key, values.encode(f"claim:{key}", value))


def look(journal: Journal, key: str, *, latest: bool = False) -> Any:
    """Return the value frozen under a key, ABSENT without one; ValueError for a claimed key."""
    if (text := journal.mark(key, latest=latest)) is None:
        return ABSENT
    found = values.decode(text)
    if not isinstance(found, dict) or found.keys() != {"v"}:
        raise ValueError(f"key: {key[:40]!r} is claimed, and cannot be frozen too")
    return found["v"]


def freeze(journal: Journal, key: str, value: Any) -> Any:
    """Freeze a value, or return the one that somebody froze meanwhile."""
    # Wrapped, so that a frozen None differs from none at all.
    text = values.encode(f"frozen:{key}", {"v": value})
    if journal.claim_mark(key, text):
        return values.decode(text)["v"]
    return look(journal, key, latest=True)


def _journal(using: str | None) -> Journal:
    return journal_for(using or conf.settings().DATABASE)
