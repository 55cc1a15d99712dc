"""Routers as projects have them, for tests of the second alias."""

from typing import Any

JOBS = "jobs"


class JobsApart:
    """The queue's tables are in an alias of their own, everything else is not there."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return JOBS if model._meta.app_label == "gnl_django" else None

    db_for_write = db_for_read

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool:
        return (db == JOBS) is (app_label == "gnl_django")


class ReadElsewhere:
    """Reads go to a replica that knows nothing yet, writes to the primary."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "replica"

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "default"

    def allow_relation(self, first: Any, second: Any, **hints: Any) -> bool:
        return True
