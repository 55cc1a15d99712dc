"""How a store sends its statements: on this thread's connection, with the database's clock.

Base of the stores of every floor. Texts are the stores' own, values are bound.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from gnl_django.core import clock
from gnl_django.core.db import missing_table, own_transaction, retrying

T = TypeVar("T")


class Statements:
    """Statements on the database alias `using`."""

    def __init__(self, using: str) -> None:
        self.using = using

    @property
    def connection(self) -> BaseDatabaseWrapper:
        """This thread's connection."""
        return connections[self.using]

    def execute(self, text: str, params: Any = ()) -> Any:
        """Run one statement on this thread's connection and return its cursor, to be read whole."""
        connection = self.connection
        cursor = connection.cursor()
        try:
            cursor.execute(clock.render(text, connection.vendor), params)
        except Error as error:
            if not missing_table(error):
                raise
            raise ImproperlyConfigured(
                f"Database {self.using!r} has no tables of gnl_django: run `manage.py migrate "
                f"--database {self.using}`, or name another alias (using=, GNL['DATABASE'])"
            ) from error
        return cursor

    def rows(self, text: str, params: Any = ()) -> list[Any]:
        """Run one statement and return its rows."""
        with self.execute(text, params) as cursor:
            found: list[Any] = list(cursor.fetchall())
            return found

    def change(self, text: str, params: Any = ()) -> int:
        """Run one statement and return the number of rows it matched."""
        with self.execute(text, params) as cursor:
            return int(cursor.rowcount)

    def own(self, work: Callable[[], T], *, durable: bool = False) -> T:
        """Run `work` in a short transaction of ours, again on a transient error.

        Inside the caller's transaction it is a savepoint; durable: there it is refused instead.
        """

        def once() -> T:
            with own_transaction(self.connection, durable=durable):
                return work()

        return retrying(self.connection, once)
