"""`manage.py gnl_run_handler KIND --payload JSON`: runs a handler once, without a job."""

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from gnl_django.errors import GnlError
from gnl_django.management import audit
from gnl_django.queue.once import run_handler_once


class Command(BaseCommand):
    """Arguments only; `queue.once` does the work (queue.md R47)."""

    help = "Run the handler of a kind once, in this process and without a job."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        add = parser.add_argument
        add("kind", help="a registered kind")
        add("--payload", default="null", help="the payload as JSON (default: null)")
        add("--org", default=None, help="the organization that the handler sees")
        add("--no-validate", action="store_true", help="hand the payload over unchecked")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run it and print what it returned, as JSON where it is JSON."""
        try:
            payload = json.loads(options["payload"])
        except ValueError as error:
            raise CommandError(f"--payload is no JSON: {error}") from error
        audit.note("run handler", what=options["kind"])
        try:
            value = run_handler_once(
                options["kind"],
                payload,
                context={"org": options["org"] or None},
                validate=not options["no_validate"],
            )
        except GnlError as error:
            raise CommandError(f"{type(error).__name__}: {error}") from error
        self.stdout.write(_shown(value))


def _shown(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, sort_keys=True)
    except (TypeError, ValueError):
        return repr(value)
