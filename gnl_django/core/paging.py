"""Keyset cursors: where a page ends, as opaque text that is checked when it comes back.

Used by every list. A cursor holds values of the order's columns and the scope it was made for; one
of another scope, a forged or a cut one is a ValueError, never another's rows (security.md I5).
"""

import base64
import binascii
import json
from collections.abc import Sequence

LIMIT_MAX = 200
CURSOR_MAX = 2_000


def encode(scope: str, values: Sequence[str | int | None]) -> str:
    """Return the cursor that continues after `values` in the list named `scope`."""
    text = json.dumps([scope, *values], separators=(",", ":"), ensure_ascii=False)
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode(scope: str, cursor: str, form: Sequence[type]) -> list[str | int | None]:
    """Return the values of `cursor`; ValueError unless it is of `scope` and of the `form`."""
    wrong = ValueError("cursor: malformed, or made for another list")
    if len(cursor) > CURSOR_MAX or not cursor.isascii():
        raise wrong
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        found = json.loads(raw)
    except (binascii.Error, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise wrong from error
    if not isinstance(found, list) or len(found) != len(form) + 1 or found[0] != scope:
        raise wrong
    values: list[str | int | None] = found[1:]
    for value, kind in zip(values, form, strict=True):
        if value is not None and type(value) is not kind:
            raise wrong
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise wrong
    return values
