"""Canonical JSON: what every floor stores of users' values, and the checks before it is stored.

Called by enqueue, settle and the models. The same value is refused or stored alike on every
database, and a refusal names the path of each fault (queue.md R2).
"""

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

from gnl_django.errors import InvalidPayload, PayloadIssue

MAX_DEPTH = 32
META_MAX_BYTES = 16 * 1024
INTEGER_LIMIT = 2**63 - 1
MAX_ISSUES = 20


#: `dump(value)` is the canonical text of a checked value: sorted keys, no spaces, no escapes.
#: One encoder for all calls: making one costs as much as a small payload.
dump: Callable[[Any], str] = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
).encode


def encode(kind: str, value: Any, *, max_bytes: int) -> str:
    """Return the canonical JSON text of `value`.

    `kind` names the owner in the error, `max_bytes` bounds the UTF-8 text. Raises InvalidPayload
    with a path for each fault. Depth is looked at first, so hostile nesting costs nothing.
    """
    if _plain(value, 0, max_bytes) < 0:
        issues = list(_limited(faults(value, max_bytes=max_bytes)))
        if issues:
            raise InvalidPayload(kind, issues)
    text = dump(value)
    if len(text) > max_bytes or len(text.encode()) > max_bytes:
        raise InvalidPayload(kind, [PayloadIssue("/", f"larger than {max_bytes} bytes")])
    return text


def _plain(value: Any, depth: int, room: int) -> int:
    """Tell quickly that nothing is wrong: `room` less the bytes that `value` takes at least.

    Negative means only that `faults` has to look.
    """
    kind = type(value)
    if kind is str:
        good = len(value) <= room and "\x00" not in value and value.isascii()
        return room - len(value) if good else -1
    if kind is int:
        return room - 1 if -INTEGER_LIMIT <= value <= INTEGER_LIMIT else -1
    if kind is float:
        return room - 1 if math.isfinite(value) else -1
    if kind is dict and depth < MAX_DEPTH:
        for key, part in value.items():
            room = _plain(part, depth + 1, _plain(key, depth, room)) if type(key) is str else -1
            if room < 0:
                break
        return room
    if kind is list and depth < MAX_DEPTH:
        for part in value:
            room = _plain(part, depth + 1, room)
            if room < 0:
                break
        return room
    return room - 1 if value is None or kind is bool else -1


def faults(value: Any, *, max_bytes: int) -> Iterator[PayloadIssue]:
    """Yield each reason why `value` is not storable JSON, walking without recursion.

    The walk ends early when the values seen so far already exceed `max_bytes`.
    """
    seen_bytes = 0
    todo: list[tuple[str, int, Any]] = [("", 0, value)]
    while todo:
        path, depth, item = todo.pop()
        # Each value takes a byte, so that parts which are shared a thousandfold end the walk too.
        seen_bytes += len(item) if isinstance(item, str) else 1
        if seen_bytes > max_bytes:
            yield PayloadIssue("/", f"larger than {max_bytes} bytes")
            return
        if isinstance(item, str):
            if fault := _text_fault(item):
                yield PayloadIssue(path or "/", fault)
        elif isinstance(item, (dict, list, tuple)):
            if depth >= MAX_DEPTH:
                yield PayloadIssue(path or "/", f"nested deeper than {MAX_DEPTH} levels")
                continue
            if isinstance(item, dict):
                yield from _key_faults(path, item)
                children = [(_child(path, key), depth + 1, part) for key, part in item.items()]
            else:
                children = [(f"{path}/{at}", depth + 1, part) for at, part in enumerate(item)]
            todo.extend(reversed(children))
        elif fault := _scalar_fault(item):
            yield PayloadIssue(path or "/", fault)


def _child(path: str, key: object) -> str:
    # JSON pointer's escapes, and no control character: a path is shown and logged.
    shown = "".join(c if c.isprintable() else "?" for c in str(key)[:64])
    return f"{path}/{shown.replace('~', '~0').replace('/', '~1')}"


def _key_faults(path: str, item: dict[Any, Any]) -> Iterator[PayloadIssue]:
    for key in item:
        if not isinstance(key, str):
            yield PayloadIssue(_child(path, key), f"object key is {type(key).__name__}, not text")
        elif fault := _text_fault(key):
            yield PayloadIssue(_child(path, key), f"object key: {fault}")


def _scalar_fault(item: object) -> str | None:
    if item is None or item is True or item is False:
        return None
    if isinstance(item, int):
        return None if -INTEGER_LIMIT <= item <= INTEGER_LIMIT else "integer beyond 64 bits"
    if isinstance(item, float):
        return None if math.isfinite(item) else "not a finite number"
    return f"{type(item).__name__} is not JSON"


def _text_fault(text: str) -> str | None:
    if "\x00" in text:
        return "text with a NUL character"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "text with a lone surrogate"
    return None


def _limited(issues: Iterator[PayloadIssue]) -> Iterator[PayloadIssue]:
    for count, issue in enumerate(issues):
        if count == MAX_ISSUES:
            yield PayloadIssue("/", "and more")
            return
        yield issue


def clean_text(text: str, max_bytes: int) -> str:
    """Return `text` as every database takes it: NUL and lone surrogates replaced, cut to size.

    `max_bytes` counts UTF-8; the cut falls on a character border (queue.md R36).
    """
    raw = text[:max_bytes].replace("\x00", "�").encode(errors="replace")
    return raw[:max_bytes].decode(errors="ignore")


class CanonicalJSONField(models.TextField):  # type: ignore[type-arg]
    """A text column that holds canonical JSON and reads as Python values; None is SQL NULL.

    Never the database's JSON type: those change the form of numbers and the order of keys, and
    parse on every write (queue.md 2).
    """

    def from_db_value(self, value: str | None, expression: Any, connection: Any) -> Any:
        """Return the Python value."""
        return None if value is None else json.loads(value)

    def to_python(self, value: Any) -> Any:
        """Return the value as it is: it is Python already."""
        return value

    def get_prep_value(self, value: Any) -> str | None:
        """Return the canonical text."""
        return None if value is None else dump(value)

    def get_db_prep_value(
        self, value: Any, connection: BaseDatabaseWrapper, prepared: bool = False
    ) -> Any:
        """Return the canonical text."""
        return value if prepared else self.get_prep_value(value)

    def value_to_string(self, obj: models.Model) -> str:
        """Return the text for a serializer."""
        return dump(self.value_from_object(obj))
