"""What the Django settings of all peers share: the database under measurement, kept connected."""

from typing import Any

from benchmarks.sides.base import address

SECRET_KEY = "only-for-a-measurement"  # noqa: S105 - nothing is signed with it
USE_TZ = True


def databases() -> dict[str, dict[str, Any]]:
    """Return DATABASES."""
    where = address()
    return {
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": where["dbname"],
            "USER": where["user"],
            "HOST": where["host"],
            "PORT": where["port"],
            # kept open: a connection per task is not what this measures
            "CONN_MAX_AGE": None,
        }
    }
