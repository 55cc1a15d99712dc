"""`manage.py gnl_prune`: deletes finished jobs and ended runs that were kept long enough."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from gnl_django import conf
from gnl_django.core import failpoints
from gnl_django.management import audit, ready
from gnl_django.queue import retention


class Command(BaseCommand):
    """Arguments only; `queue.retention` does the work (queue.md 3.9, R50)."""

    help = "Delete finished jobs, ended durable runs and marks that are older than GNL['KEEP_..']."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        given = conf.settings()
        parser.add_argument("--database", default=given.DATABASE, help="alias of the database")

    def handle(self, *args: Any, **options: Any) -> None:
        """Delete and say how many."""
        failpoints.arm_from_environment()
        counts = retention.prune(using=ready.database(options["database"]))
        text = ", ".join(f"{count} {state}" for state, count in counts.items())
        audit.note("prune", outcome=text)
        self.stdout.write(f"Deleted: {text}")
