"""Empty the test database between tests that commit.

Django's own `flush` touches every table and then runs post_migrate again. Here only the tables
that hold something are emptied, and content types and permissions, which migrations made and no
test changes, stay. Called after each transactional test (conftest.py).
"""

from functools import cache

from django.apps import apps
from django.db import connections, transaction

KEPT = {"django_content_type", "auth_permission", "django_migrations"}


@cache
def emptied() -> tuple[str, ...]:
    """Return the tables of all installed models, many-to-many ones too, without the kept ones."""
    models = apps.get_models(include_auto_created=True)
    tables = {m._meta.db_table for m in models if m._meta.managed and not m._meta.proxy}
    return tuple(sorted(tables - KEPT))


def empty_tables(using: str = "default") -> None:
    """Delete every row of the tables that have any, in one transaction."""
    connection = connections[using]
    quote = connection.ops.quote_name
    with transaction.atomic(using=using), connection.cursor() as cursor:
        cursor.execute(
            " UNION ALL ".join(
                f"SELECT '{table}' FROM (SELECT 1 AS one) AS o"
                f" WHERE EXISTS (SELECT 1 FROM {quote(table)})"
                for table in emptied()
            )
        )
        filled = [quote(row[0]) for row in cursor.fetchall()]
        if not filled:
            return
        if connection.vendor == "postgresql":
            # TRUNCATE leaves no dead rows behind, which a later test's plan would see. A thread
            # that a test forgot must fail this test, not hang the run.
            cursor.execute("SET LOCAL lock_timeout = '10s'")
            cursor.execute(f"TRUNCATE {', '.join(filled)} CASCADE")
            return
        if connection.vendor == "mysql":
            cursor.execute("SET foreign_key_checks = 0")
        try:
            for table in filled:
                cursor.execute(f"DELETE FROM {table}")
        finally:
            if connection.vendor == "mysql":
                cursor.execute("SET foreign_key_checks = 1")
