"""Indexes and constraints that each database gets in the form it can have or likes best.

Used by the models of every floor. Django drops the condition of an index or a unique constraint on
MySQL without a word; here the model says what MySQL gets instead.
"""

from typing import Any

from django.db import models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.backends.ddl_references import Statement
from django.utils.deconstruct import deconstructible


class PartialIndex(models.Index):
    """An index over the rows of `where`; on MySQL, which has none, over the columns `mysql`.

    Django drops the condition of an index on MySQL without a word, which would leave the hot
    queries without the column that the condition named. `mysql=None` means: no index there.
    """

    def __init__(
        self,
        *,
        fields: list[str] | tuple[str, ...],
        name: str,
        where: models.Q,
        mysql: list[str] | tuple[str, ...] | None,
    ) -> None:
        super().__init__(fields=fields, name=name)
        self.where = where
        self.mysql = mysql

    def create_sql(
        self,
        model: type[models.Model],
        schema_editor: BaseDatabaseSchemaEditor,
        using: str = "",
        **kwargs: Any,
    ) -> Any:
        """Return the vendor's CREATE INDEX. ("DO 0": Django executes whatever comes back.)"""
        if schema_editor.connection.vendor != "mysql":
            index = models.Index(fields=self.fields, name=self.name, condition=self.where)
        elif self.mysql is not None:
            index = models.Index(fields=self.mysql, name=self.name)
        else:
            return Statement("DO 0")
        return index.create_sql(model, schema_editor, using, **kwargs)

    def remove_sql(
        self, model: type[models.Model], schema_editor: BaseDatabaseSchemaEditor, **kwargs: Any
    ) -> Any:
        """Return the vendor's DROP INDEX, nothing where none was made."""
        if schema_editor.connection.vendor == "mysql" and self.mysql is None:
            return Statement("DO 0")
        return super().remove_sql(model, schema_editor, **kwargs)

    def deconstruct(self) -> tuple[str, Any, dict[str, Any]]:
        """Name the arguments for a migration."""
        path, args, kwargs = super().deconstruct()
        return path, args, {**kwargs, "where": self.where, "mysql": self.mysql}


class UniqueWherePresent(models.UniqueConstraint):
    """Unique among the rows that have a value; the others cost no index entry where possible.

    NULLs are distinct on every database, so that on MySQL a plain unique index means the same. (On
    PostgreSQL each update of a job without a key would rewrite its entry: 25 us a statement.)
    """

    def __init__(self, *, field: str, name: str) -> None:
        super().__init__(fields=[field], name=name)
        self.field = field

    def _for(self, schema_editor: Any) -> models.UniqueConstraint:
        present = models.Q(**{f"{self.field}__isnull": False})
        condition = None if schema_editor.connection.vendor == "mysql" else present
        return models.UniqueConstraint(fields=[self.field], name=self.name, condition=condition)

    def constraint_sql(self, model: Any, schema_editor: Any) -> Any:
        """Return the vendor's clause of CREATE TABLE."""
        return self._for(schema_editor).constraint_sql(model, schema_editor)

    def create_sql(self, model: Any, schema_editor: Any) -> Any:
        """Return the vendor's statement that adds it."""
        return self._for(schema_editor).create_sql(model, schema_editor)

    def remove_sql(self, model: Any, schema_editor: Any) -> Any:
        """Return the vendor's statement that drops it."""
        return self._for(schema_editor).remove_sql(model, schema_editor)

    def deconstruct(self) -> tuple[str, Any, dict[str, Any]]:
        """Name the arguments for a migration."""
        path, _, _ = super().deconstruct()
        return path, (), {"field": self.field, "name": self.name}


@deconstructible
class Clause(models.Expression):
    """A condition as written, for a CHECK that every statement has to prepare anew.

    PostgreSQL parses each CHECK with each INSERT and UPDATE; what Django builds of Q is three times
    as long (55 against 22 us a statement for our six). `postgresql` is its own form of `text`.
    """

    conditional = True

    def __init__(self, text: str, *, postgresql: str | None = None) -> None:
        super().__init__(output_field=models.BooleanField())
        self.text = text
        self.postgresql = postgresql

    def as_sql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        """Return the text."""
        return self.text, []

    def as_postgresql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        """Return PostgreSQL's form of the text."""
        return self.postgresql or self.text, []
