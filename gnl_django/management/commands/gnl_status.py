"""`manage.py gnl_status [--json] [--check]`: how the queues stand, and what is wrong."""

import json
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand

from gnl_django.core import health as database
from gnl_django.core.db import now
from gnl_django.core.health import HealthWarning
from gnl_django.management import ready
from gnl_django.queue import health
from gnl_django.queue.health import QueueNumbers, capped, span


class Command(BaseCommand):
    """Shows what each floor's `health` says (queue.md 3.9)."""

    help = "Show the numbers of each queue and what is wrong with it or the database."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        add = parser.add_argument
        add("--json", action="store_true", help="print one JSON object")
        add("--check", action="store_true", help="exit 1 when work is late or stands still")
        add("--database", default=None, help="alias of the database")

    def handle(self, *args: Any, **options: Any) -> None:
        """Read, print; with --check exit 1 when unhealthy."""
        using = ready.database(options["database"])
        moment, queues = now(using), health.numbers(using)
        warnings = [*health.judge(queues, using), *database.warnings(using)]
        healthy = not any(warning.unhealthy for warning in warnings)
        show = self._as_json if options["json"] else self._as_text
        show(moment, queues, warnings, healthy)
        if options["check"] and not healthy:
            raise SystemExit(1)

    def _as_text(
        self,
        moment: datetime,
        queues: Sequence[QueueNumbers],
        warnings: Sequence[HealthWarning],
        healthy: bool,
    ) -> None:
        names = ("queue", "scheduled", "ready", "running", "dead", "oldest ready")
        table = [names] + [
            (
                row.queue,
                *map(capped, (row.scheduled, row.ready, row.running, row.dead)),
                "" if row.oldest_ready is None else span(moment - row.oldest_ready),
            )
            for row in queues
        ]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        for line in table:
            cells = [cell.rjust(width) for cell, width in zip(line, widths, strict=True)]
            self.stdout.write("  ".join([line[0].ljust(widths[0]), *cells[1:]]).rstrip())
        for warning in warnings:
            self.stdout.write(("UNHEALTHY: " if warning.unhealthy else "warning: ") + warning.text)
        if healthy:
            self.stdout.write("healthy")

    def _as_json(
        self,
        moment: datetime,
        queues: Sequence[QueueNumbers],
        warnings: Sequence[HealthWarning],
        healthy: bool,
    ) -> None:
        rows = [
            {**asdict(row), "oldest_ready": row.oldest_ready and row.oldest_ready.isoformat()}
            for row in queues
        ]
        found = {
            "now": moment.isoformat(),
            "healthy": healthy,
            "queues": rows,
            "warnings": [asdict(warning) for warning in warnings],
        }
        self.stdout.write(json.dumps(found, indent=2, ensure_ascii=False))
