"""The migrations tell the whole truth about the models, and they go both ways."""

from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection

APP = "gnl_django"


def schema() -> dict[str, dict[str, Any]]:
    """Return columns and constraints (CHECKs, keys, indexes) of the app's tables."""
    with connection.cursor() as cursor:
        return {
            table: {
                "columns": [
                    (c.name, c.type_code, c.null_ok, c.internal_size)
                    for c in connection.introspection.get_table_description(cursor, table)
                ],
                "constraints": {
                    # The names of some foreign keys are the database's own affair.
                    (tuple(facts["columns"] or ()), facts["unique"], facts["check"])
                    for facts in connection.introspection.get_constraints(cursor, table).values()
                },
            }
            for table in connection.introspection.table_names(cursor)
            if table.startswith(APP)
        }


@pytest.mark.django_db
def test_the_models_have_no_change_without_a_migration() -> None:
    output = StringIO()
    try:
        call_command("makemigrations", check_changes=True, dry_run=True, stdout=output)
    except SystemExit:
        pytest.fail(f"a migration is missing:\n{output.getvalue()}")


@pytest.mark.django_db(transaction=True)
def test_the_migrations_go_back_to_nothing_and_forward_again() -> None:
    before = schema()
    assert f"{APP}_job" in before
    try:
        call_command("migrate", APP, "zero", verbosity=0)
        assert schema() == {}
    finally:
        call_command("migrate", APP, verbosity=0)
    assert schema() == before
