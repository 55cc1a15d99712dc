"""`manage.py gnl_retry ID.. | --error KEY`: makes dead and canceled jobs ready again."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from gnl_django.management import audit, ready
from gnl_django.management.jobs import dead_with_error, in_words, job_id
from gnl_django.queue.operator import retry_jobs


class Command(BaseCommand):
    """Arguments only; `retry_jobs` does the work (queue.md 3.9, R41)."""

    help = "Make dead and canceled jobs ready again, by id, or all dead ones that failed alike."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        add = parser.add_argument
        add("ids", nargs="*", type=job_id, metavar="ID", help="ids of jobs")
        add("--error", default=None, metavar="KEY", help="all dead jobs with this error key")
        add("--kind", default=None, help="with --error: only of this kind")
        add("--queue", default=None, help="with --error: only in this queue")
        add("--org", default=None, help="with --error: only of this organization ('': ownerless)")
        add("--database", default=None, help="alias of the database")

    def handle(self, *args: Any, **options: Any) -> None:
        """Retry, say what became of them; exit 1 when nothing changed."""
        filters = {name: options[name] for name in ("kind", "queue", "org")}
        filters = {name: value for name, value in filters.items() if value is not None}
        using, ids, error = ready.database(options["database"]), options["ids"], options["error"]
        if bool(ids) == (error is not None):
            raise CommandError("Give ids of jobs, or --error KEY, one of them.")
        if ids and filters:
            raise CommandError("--kind, --queue and --org go with --error.")
        if error is not None:
            ids = dead_with_error(error, filters, using=using)
        result = retry_jobs(ids, using=using)
        about = "" if error is None else f"error {error!r}, filters {filters}"
        audit.note("retry", what=about, ids=ids, outcome=in_words(result, "made ready"))
        self.stdout.write(in_words(result, "made ready"))
        if not result.changed:
            raise CommandError("Nothing changed.")
