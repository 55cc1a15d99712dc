"""The one setting, `GNL`: a dict whose keys and defaults are the fields of `Settings`.

Read with `conf.settings()`; a changed setting (override_settings) is seen at once. An unknown key
or a value of the wrong form is refused when the settings are read, so a typo never passes silently.
"""

from dataclasses import dataclass, fields
from datetime import timedelta
from functools import cache
from math import inf
from typing import Any

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

#: Least and most seconds of the keys whose default happens to be a whole number.
_SECONDS = {"TTL": (0, inf), "HEARTBEAT": (1, 30)}

DEFAULT_REDACT_KEYS = (
    r"password|passwd|secret|token|authorization|cookie|api[_-]?key|access[_-]?key"
    r"|private[_-]?key|credential|session"
)


#: Seconds; a longer time would reach beyond the calendar (None = for ever).
LONGEST_KEEP = 1_000 * 365 * 86_400


@dataclass(frozen=True)
class Settings:
    """Every key of `GNL` with its default."""

    #: Database alias in which jobs live when a call names none.
    DATABASE: str = "default"
    #: Largest payload, in bytes of its stored JSON text.
    PAYLOAD_MAX_BYTES: int = 1_048_576
    #: Largest stored result, in bytes of its JSON text; a larger one leaves a note (R37).
    RESULT_MAX_BYTES: int = 65_536
    #: Attempts of a kind that names no number.
    MAX_ATTEMPTS: int = 5
    #: Seconds a claim lasts unless it is renewed (every third of it).
    TTL: float = 30.0
    #: Seconds between two looks of an idle worker, at first ..
    POLL: float = 0.2
    #: .. and at most, doubling while nothing is found.
    MAX_POLL: float = 6.4
    #: Handlers that run at the same time in one worker.
    CONCURRENCY: int = 10
    #: LISTEN and NOTIFY between processes (PostgreSQL); None = on where it exists, without LISTEN
    #: behind a pooler that shares sessions.
    NOTIFY: bool | None = None
    #: Seconds a pass waits for running handlers so that their outcomes share a transaction (R10).
    LINGER: float = 0.001
    #: Seconds (1 .. 30) between two heartbeats of a process's row, where commands are read too.
    HEARTBEAT: float = 5
    #: What runs here, shown beside each worker: a version or commit of yours, up to 64 characters.
    RELEASE: str = ""
    #: Prepared statements on a worker's control connection (PostgreSQL); turns itself off
    #: behind a pooler that cannot keep them (R51).
    PREPARE: bool = True
    #: How long a job is kept after it has succeeded: timedelta or seconds, None = for ever ..
    KEEP_SUCCEEDED: timedelta | float | None = timedelta(days=7)
    #: .. was canceled ..
    KEEP_CANCELED: timedelta | float | None = timedelta(days=7)
    #: .. has died.
    KEEP_DEAD: timedelta | float | None = timedelta(days=90)
    #: How long a durable run is kept after it has ended, with its steps; one whose job still exists
    #: stays with it.
    KEEP_RUNS: timedelta | float | None = timedelta(days=30)
    #: How long what `claim` and `frozen` have noted is kept.
    KEEP_MARKS: timedelta | float | None = timedelta(days=90)
    #: Seconds that a ready job may wait before `gnl_status` calls its queue late; a queue's own
    #: `alert_age` wins.
    STUDIO_ALERT_AGE: int = 300
    #: Arms fail points, together with the environment variable GNL_FAILPOINTS. Tests only.
    FAILPOINTS: bool = False
    #: Object keys whose values the admin hides: a case-insensitive pattern searched in keys.
    REDACT_KEYS: str = DEFAULT_REDACT_KEYS
    #: Dotted path of `fn(kind, value) -> value`, called after the pattern; None = none.
    REDACT: str | None = None


@cache
def settings() -> Settings:
    """Return the settings in force. Raises ImproperlyConfigured for an unknown or wrong key."""
    given: dict[str, Any] = getattr(django_settings, "GNL", {})
    if not isinstance(given, dict):
        raise ImproperlyConfigured(f"GNL must be a dict, not {type(given).__name__}")
    known = {field.name: field for field in fields(Settings)}
    for name, value in given.items():
        if name not in known:
            raise ImproperlyConfigured(
                f"GNL has no key {name!r}; it knows {', '.join(sorted(known))}"
            )
        _check(name, value, known[name].default)
    return Settings(**given)


def readable() -> Settings:
    """Return the settings, the defaults while they are wrong: for the help text of a command."""
    try:
        return settings()
    except ImproperlyConfigured:
        return Settings()


def _check(name: str, value: Any, default: Any) -> None:
    good, form = _judge(name, value, default)
    if not good:
        raise ImproperlyConfigured(f"GNL[{name!r}] = {value!r}: must be {form}")


def _judge(name: str, value: Any, default: Any) -> tuple[bool, str]:
    if name == "NOTIFY":
        return value is None or isinstance(value, bool), "True, False or None"
    if default is None:
        return value is None or isinstance(value, str), "text or None"
    if isinstance(default, str):
        return isinstance(value, str), "text"
    if isinstance(default, timedelta):
        span = value.total_seconds() if isinstance(value, timedelta) else value
        good = value is None or (_is_number(span) and 0 <= span <= LONGEST_KEEP)
        return good, "a timedelta or seconds, from 0 to 1,000 years, or None"
    if isinstance(default, bool):
        return isinstance(value, bool), "True or False"
    if isinstance(default, int) and name not in _SECONDS:
        return _is_number(value) and isinstance(value, int) and value > 0, "a whole number above 0"
    least, most = _SECONDS.get(name, (0, inf))
    form = f"a number of seconds, {least} or more" + (f", at most {most}" if most < inf else "")
    return _is_number(value) and least <= value <= most, form


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _forget(*, setting: str, **_: Any) -> None:
    if setting == "GNL":
        settings.cache_clear()


setting_changed.connect(_forget, dispatch_uid="gnl_django.conf")
