"""`manage.py gnl_cancel ID..`: cancels jobs that wait, asks running ones to stop."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from gnl_django.management import audit, ready
from gnl_django.management.jobs import in_words, job_id
from gnl_django.queue.operator import BulkResult, cancel_job


class Command(BaseCommand):
    """Arguments only; `cancel_job` does the work (queue.md 3.9, R42)."""

    help = "Cancel jobs: those that wait at once, running ones by asking their handlers to stop."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        add = parser.add_argument
        add("ids", nargs="+", type=job_id, metavar="ID", help="ids of jobs")
        add("--reason", default="", help="why, up to 500 characters; kept with the job")
        add("--database", default=None, help="alias of the database")

    def handle(self, *args: Any, **options: Any) -> None:
        """Cancel, say what became of them; exit 1 when nothing changed."""
        ids, using = sorted(set(options["ids"])), ready.database(options["database"])
        changed = [pk for pk in ids if cancel_job(pk, options["reason"], using=using)]
        result = BulkResult(len(ids), len(changed), len(ids) - len(changed))
        audit.note("cancel", ids=ids, outcome=in_words(result, "canceled or asked to stop"))
        self.stdout.write(in_words(result, "canceled or asked to stop"))
        if not result.changed:
            raise CommandError("Nothing changed.")
