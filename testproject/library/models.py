"""What the demo keeps about a source file: one row a path, written by `background.reindex` only.

The row is replaced as a whole each time its file is read, so it never mixes two versions of a file.
"""

from typing import Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper


class PathField(models.CharField):  # type: ignore[type-arg]
    """Text that is compared byte by byte on every database.

    MySQL and MariaDB compare without regard to case unless told otherwise, and two files whose
    names differ in case only would share one row there.
    """

    def db_parameters(self, connection: BaseDatabaseWrapper) -> dict[str, Any]:
        """Add the exact collation where the default one is not exact."""
        parameters = dict(super().db_parameters(connection))
        if connection.vendor == "mysql":
            parameters["collation"] = "utf8mb4_bin"
        return parameters


class Document(models.Model):
    """One installed source file as its last successful job saw it."""

    path = PathField(max_length=255, unique=True)
    package = models.CharField(max_length=128, db_index=True)
    lines = models.PositiveIntegerField()
    functions = models.PositiveIntegerField()
    classes = models.PositiveIntegerField()
    imports = models.JSONField(default=list, help_text="Modules named by import statements, sorted")
    sha256 = models.CharField(max_length=64)

    def __str__(self) -> str:
        return str(self.path)
