"""The database's clock: the only one that decides what is due, expired or late (queue.md 2).

Every SQL text of the stores writes `{now}` where it means this instant and `{base}` where SQLite's
date functions want it as their argument; `render` puts the vendor's words there. Tests set another
instant with `override`; the process's own clock is never asked.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import lru_cache

# "%%": the texts pass through the drivers' parameter formatting.
_NOW = {
    "postgresql": "clock_timestamp()",
    "mysql": "UTC_TIMESTAMP(6)",
    "sqlite": "(strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now') || '000')",
}
_FIXED = {
    "postgresql": "CAST('{0}+00' AS timestamptz)",
    "mysql": "TIMESTAMP'{0}'",
    "sqlite": "'{0}'",
}
_override: datetime | None = None


def render(text: str, vendor: str) -> str:
    """Return the SQL text with `vendor`'s words for the present instant."""
    return _render(text, vendor, _override)


@lru_cache(maxsize=1024)  # bounded: the claim's text changes every second
def _render(text: str, vendor: str, fixed: datetime | None) -> str:
    if fixed is None:
        now, base = _NOW[vendor], "'now'"
    else:
        literal = fixed.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
        now, base = _FIXED[vendor].format(literal), f"'{literal}'"
    return text.replace("{now}", now).replace("{base}", base)


class Override:
    """The instant that tests set; `advance` moves it."""

    def set(self, instant: datetime) -> None:
        """Make `instant` (aware) the present."""
        global _override
        _override = instant.astimezone(UTC)

    def advance(self, delta: timedelta) -> None:
        """Move the present by `delta`."""
        if _override is None:
            raise RuntimeError("the clock is not overridden")
        self.set(_override + delta)


@contextmanager
def override(instant: datetime) -> Iterator[Override]:
    """For tests: all statements of this process take `instant` (aware) as the present."""
    global _override
    before = _override
    clock = Override()
    clock.set(instant)
    try:
        yield clock
    finally:
        _override = before


def wall() -> datetime:
    """Return this process's own time, for display only: it decides nothing."""
    return datetime.now(UTC)
