"""Small helpers that tests of every floor share."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from django.db import connections

Value = TypeVar("Value")
PAUSE = 0.01  # seconds between two looks


def vendor(using: str = "default") -> str:
    """Return the database of this run: "sqlite", "postgresql" or "mysql"."""
    return connections[using].vendor


def wait_until(
    condition: Callable[[], Value],
    timeout: float = 30.0,
    *,
    describe: str | Callable[[], object] = "",
) -> Value:
    """Return the first true value of `condition`; fail when there is none within `timeout` seconds.

    `describe` goes into the failure's text: words, or a callable that shows how things stand then.
    An exception in `condition` ends the wait at once, as in any other test code.
    """
    deadline = time.monotonic() + timeout
    pause = threading.Event()
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            break
        pause.wait(PAUSE)
    story = describe() if callable(describe) else describe
    name = getattr(condition, "__qualname__", repr(condition))
    where = getattr(condition, "__code__", None)
    place = f" ({where.co_filename}:{where.co_firstlineno})" if where else ""
    raise AssertionError(
        f"still {value!r} after {timeout:g} s: {name}{place}" + (f"\n{story}" if story else "")
    )
