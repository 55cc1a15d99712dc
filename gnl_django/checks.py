"""System checks: settings and databases under which the queue's promises would not hold (R52)."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import django
from django.apps import AppConfig
from django.conf import settings as django_settings
from django.core import checks
from django.core.checks import CheckMessage, Tags, register
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, router
from django.utils.module_loading import import_string

from gnl_django import conf


def _mysql_is_new(connection: Any) -> bool:
    # Descending index parts since MariaDB 10.8, SKIP LOCKED since 10.6; CHECK since MySQL 8.0.16.
    least = (10, 11) if connection.mysql_is_mariadb else (8, 0, 16)
    return bool(connection.mysql_version >= least)


#: Vendor -> the oldest database we work on, and the question whether a connection's is as new.
OLDEST: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "postgresql": ("PostgreSQL 14", lambda connection: connection.pg_version >= 14_00_00),
    "mysql": ("MariaDB 10.11 or MySQL 8.0.16", _mysql_is_new),
    "sqlite": (
        "SQLite 3.35",
        lambda connection: connection.Database.sqlite_version_info >= (3, 35),
    ),
}


@register()
def check_settings(
    app_configs: Sequence[AppConfig] | None = None, **kwargs: Any
) -> Iterable[CheckMessage]:
    """Check GNL and the DATABASES entry of its alias, without connecting."""
    try:
        settings = conf.settings()
    except ImproperlyConfigured as error:
        return [checks.Error(str(error), id="gnl_django.E001")]
    found: list[CheckMessage] = []
    if settings.TTL < 3 * settings.POLL:
        found.append(
            checks.Error(
                "GNL['TTL'] is shorter than three times GNL['POLL']: leases would run out between "
                "two looks of a worker.",
                id="gnl_django.E002",
            )
        )
    found += _check_redaction(settings)
    if settings.DATABASE not in django_settings.DATABASES:
        message = f"GNL['DATABASE'] = {settings.DATABASE!r} is not an alias of DATABASES."
        return [*found, checks.Error(message, id="gnl_django.E003")]
    return found + _check_alias(settings.DATABASE) + _check_options(settings.DATABASE)


def _check_redaction(settings: conf.Settings) -> list[CheckMessage]:
    try:
        re.compile(settings.REDACT_KEYS)
        if settings.REDACT is not None:
            import_string(settings.REDACT)
    except (re.error, ImportError) as error:
        message = f"GNL['REDACT_KEYS'] or GNL['REDACT'] cannot be used: {error}"
        return [checks.Error(message, id="gnl_django.E005")]
    return []


def _check_alias(alias: str) -> list[CheckMessage]:
    """Check what makes an alias no place for jobs at all."""
    found: list[CheckMessage] = []
    if not router.allow_migrate(alias, "gnl_django", model_name="job"):
        found.append(
            checks.Warning(
                f"A database router keeps the tables of gnl_django out of {alias!r}, where "
                "GNL['DATABASE'] looks for them.",
                hint="Let allow_migrate() return True for the app label gnl_django there.",
                id="gnl_django.W004",
            )
        )
    if not django_settings.DATABASES[alias].get("AUTOCOMMIT", True):
        message = f"DATABASES[{alias!r}] has AUTOCOMMIT off: nothing a worker does would last."
        found.append(checks.Error(message, id="gnl_django.E006"))
    return found


def _check_options(alias: str) -> list[CheckMessage]:
    entry = django_settings.DATABASES[alias]
    options = entry.get("OPTIONS", {})
    engine = entry.get("ENGINE", "")
    if engine.endswith("sqlite3") and options.get("transaction_mode") != "IMMEDIATE":
        return [
            checks.Warning(
                f"DATABASES[{alias!r}] does not begin transactions IMMEDIATE: one of yours that "
                "reads first and writes later fails when a worker has written between.",
                hint="OPTIONS: {'transaction_mode': 'IMMEDIATE', "
                "'init_command': 'PRAGMA journal_mode=WAL;'}",
                id="gnl_django.W001",
            )
        ]
    isolation = options.get("isolation_level", "read committed")
    if engine.endswith("mysql") and str(isolation).lower() != "read committed":
        return [
            checks.Warning(
                f"DATABASES[{alias!r}] uses isolation level {isolation!r}: an enqueue on an empty "
                "queue may wait for a worker's gap locks.",
                hint="OPTIONS: {'isolation_level': 'read committed'}",
                id="gnl_django.W002",
            )
        ]
    return []


def _readable() -> conf.Settings | None:
    """Return the settings, None when they are wrong: `check_settings` says so."""
    try:
        return conf.settings()
    except ImproperlyConfigured:
        return None


@register(Tags.database)
def check_versions(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Check that the database of GNL['DATABASE'] is young enough; connects to it."""
    settings = _readable()
    if settings is None or settings.DATABASE not in (databases or ()):
        return []
    alias = settings.DATABASE
    connection: Any = connections[alias]
    oldest, is_new = OLDEST.get(
        connection.vendor, ("PostgreSQL, MySQL, MariaDB or SQLite", lambda _: False)
    )
    if is_new(connection):
        return []
    message = f"Database {alias!r}: gnl_django needs {oldest} or newer."
    return [checks.Error(message, id="gnl_django.E004")]


@register()
def check_tasks(
    app_configs: Sequence[AppConfig] | None = None, **kwargs: Any
) -> Iterable[CheckMessage]:
    """Say that TASKS is not looked at by a Django without django.tasks (R59)."""
    if django.VERSION >= (6, 0):
        return []  # there the backend checks itself
    named: dict[str, dict[str, Any]] = getattr(django_settings, "TASKS", {})
    return [
        checks.Error(
            f"TASKS[{alias!r}] names GnlBackend, which needs Django 6.0 or newer.",
            id="gnl_django.E023",
        )
        for alias, entry in named.items()
        if entry.get("BACKEND") == "gnl_django.tasks.GnlBackend"
    ]


@register(Tags.security, deploy=True)
def check_failpoints(
    app_configs: Sequence[AppConfig] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """Warn when fail points could be armed in production (reliability.md 2.4)."""
    settings = _readable()
    if settings is None or not settings.FAILPOINTS:
        return []
    message = "GNL['FAILPOINTS'] is True: an environment variable could kill your workers."
    return [checks.Warning(message, id="gnl_django.W003")]
