"""Model fields that mean the same thing on every database.

Used by the models of every floor. Names compare exactly and sort by code point everywhere; times
are stored and read in UTC whatever the project's settings.
"""

from datetime import UTC, datetime
from typing import Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import timezone

EXACT_COLLATION = {"postgresql": "C", "mysql": "utf8mb4_bin", "sqlite": "BINARY"}


class NameField(models.CharField):  # type: ignore[type-arg]
    """Text that is a name: equality is exact and order is code-point order (queue.md 2)."""

    def db_parameters(self, connection: BaseDatabaseWrapper) -> dict[str, Any]:
        """Add the vendor's exact collation to the column."""
        parameters: dict[str, Any] = dict(super().db_parameters(connection))
        parameters["collation"] = EXACT_COLLATION[connection.vendor]
        return parameters


class UTCDateTimeField(models.DateTimeField):  # type: ignore[type-arg]
    """A point in time, stored with microseconds and read as an aware UTC datetime.

    Unlike DateTimeField it does not depend on USE_TZ or on the connection's time zone.
    """

    COLUMN = {
        "postgresql": "timestamp with time zone",
        "mysql": "datetime(6)",
        "sqlite": "datetime",
    }

    def get_internal_type(self) -> str:
        """Name a type of our own: Django's converters for DateTimeField follow USE_TZ."""
        return "UTCDateTimeField"

    def db_type(self, connection: BaseDatabaseWrapper) -> str:
        """Return the vendor's column type."""
        return self.COLUMN[connection.vendor]

    def cast_db_type(self, connection: BaseDatabaseWrapper) -> str:
        """Return the same type: a cast changes nothing."""
        return self.COLUMN[connection.vendor]

    def select_format(self, compiler: Any, sql: str, params: Any) -> tuple[str, Any]:
        """On PostgreSQL select the UTC wall time: the session's zone plays no part."""
        if compiler.connection.vendor == "postgresql":
            sql = f"({sql}) AT TIME ZONE 'UTC'"
        return sql, params

    def from_db_value(
        self, value: datetime | str | None, expression: Any, connection: BaseDatabaseWrapper
    ) -> datetime | None:
        """Return an aware UTC datetime."""
        if value is None:
            return None
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)

    def get_prep_value(self, value: Any) -> datetime | None:
        """Return an aware UTC datetime; a naive one is taken in the current time zone."""
        moment: datetime | None = self.to_python(models.Field.get_prep_value(self, value))
        if moment is None:
            return None
        if timezone.is_naive(moment):
            moment = timezone.make_aware(moment)
        return moment.astimezone(UTC)

    def get_db_prep_value(
        self, value: Any, connection: BaseDatabaseWrapper, prepared: bool = False
    ) -> Any:
        """Return the vendor's form of the value."""
        if not prepared:
            value = self.get_prep_value(value)
        return to_database(value, connection.vendor)


def to_database(value: datetime | None, vendor: str) -> datetime | str | None:
    """Return an aware datetime as a parameter for `vendor`'s driver.

    PostgreSQL keeps the zone; MySQL's DATETIME has none, so UTC wall time; SQLite compares text, so
    always six fraction digits.
    """
    if value is None or vendor == "postgresql":
        return value
    value = value.astimezone(UTC).replace(tzinfo=None)
    return value if vendor == "mysql" else value.isoformat(sep=" ", timespec="microseconds")
