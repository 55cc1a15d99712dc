"""A second alias for tests: a connection of its own to the test database, or to none."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections


@contextmanager
def second_alias(name: str, **changes: Any) -> Iterator[str]:
    """Add the alias `name` to this thread, with the default's settings and some changes."""
    wrapper = connections["default"].copy(name)
    wrapper.settings_dict.update(changes)
    connections[name] = wrapper
    try:
        yield name
    finally:
        wrapper.close()
        del connections[name]


class AuditRouter:
    """Keeps the admin's log on the alias `audit`."""

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return "audit" if model._meta.label == "admin.LogEntry" else None

    def allow_relation(self, first: Any, second: Any, **hints: Any) -> bool:
        return True
