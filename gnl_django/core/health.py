"""What is wrong, in words: each floor's `health.py` returns these, `gnl_status` adds them up."""

from dataclasses import dataclass

from gnl_django.core import db


@dataclass(frozen=True)
class HealthWarning:
    """One fact that an operator should know.

    `unhealthy`: work is late or stands still, so a monitor should call somebody.
    """

    code: str
    text: str
    unhealthy: bool = False


def warnings(using: str) -> list[HealthWarning]:
    """Return the database's settings under which it may lose what it has committed (F27)."""
    return [
        HealthWarning(
            "durability",
            f"Database {using!r}: {setting}. A crash of the machine may lose committed jobs, or "
            "have finished ones run again.",
        )
        for setting in db.lossy_settings(using)
    ]
