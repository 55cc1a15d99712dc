"""`manage.py gnl_queue`: pause and resume queues and lanes, and list them."""

import getpass
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from gnl_django.management import ready
from gnl_django.queue.models import QueueState
from gnl_django.queue.pauses import pause_queue, resume_queue


class Command(BaseCommand):
    """Arguments and words; `queue.pauses` does the work (studio.md 2.8)."""

    help = "Pause or resume a queue or one organization's lane of it; list queues and pauses."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the three acts."""
        acts = parser.add_subparsers(dest="act", required=True)
        for act, words in (("pause", "let no worker claim"), ("resume", "undo a pause")):
            sub = acts.add_parser(act, help=words)
            sub.add_argument("queue", help="its name; with --org also '*' for all queues")
            sub.add_argument("--org", default=None, help="only this organization's lane")
            if act == "pause":
                sub.add_argument("--reason", default="", help="shown to others, up to 200 letters")
            sub.add_argument("--database", default=None, help="alias")
        sub = acts.add_parser("list", help="all known queues and all paused lanes")
        sub.add_argument("--database", default=None, help="alias")

    def handle(self, *args: Any, **options: Any) -> None:
        """Do one act and say what came of it."""
        if options["act"] == "list":
            self._list(ready.database(options["database"]))
            return
        queue, org, using = options["queue"], options["org"], ready.database(options["database"])
        name = f"Lane {org} of queue {queue}" if org else f"Queue {queue}"
        try:
            if options["act"] == "pause":
                reason = options["reason"]
                done = pause_queue(queue, org=org, reason=reason, by=_user(), using=using)
                self.stdout.write(f"{name} {'is paused' if done else 'was paused already'}.")
            else:
                done = resume_queue(queue, org=org, by=_user(), using=using)
                self.stdout.write(f"{name} {'goes on' if done else 'was not paused'}.")
        except (ValueError, TypeError) as error:
            raise CommandError(str(error)) from error

    def _list(self, using: str) -> None:
        for row in QueueState.objects.using(using).order_by("queue", "org"):
            if row.paused_at is not None:
                since = row.paused_at.isoformat(sep=" ", timespec="seconds")
                why = f": {row.pause_reason}" if row.pause_reason else ""
                by = f" by {row.paused_by}" if row.paused_by else ""
                self.stdout.write(f"{_place(row)}\tpaused since {since}{by}{why}")
            elif not row.org:
                self.stdout.write(f"{_place(row)}\topen")


def _place(row: QueueState) -> str:
    return f"{row.queue} / {row.org}" if row.org else row.queue


def _user() -> str:
    """Return the name of the operating system's user, "" when it has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
