"""`manage.py gnl_worker`: runs a Worker until SIGTERM, SIGINT or, with --until-idle, the end."""

import os
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from gnl_django import conf
from gnl_django.core import failpoints
from gnl_django.errors import UnknownKind
from gnl_django.queue import serving
from gnl_django.queue.worker import Worker


class Command(BaseCommand):
    """Arguments only; `queue.serving` does the work (queue.md 3.9, R46)."""

    help = "Run the jobs of one or more queues."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        given = conf.settings()
        add = parser.add_argument
        add("--queues", default="default", help="names, comma-separated, best first")
        add("--concurrency", type=int, default=given.CONCURRENCY, help="handlers at a time")
        add("--ttl", type=float, default=given.TTL, help="seconds a claim lasts unrenewed")
        add("--poll", type=float, default=given.POLL, help="seconds between looks when idle")
        add("--max-poll", type=float, default=None, help="the longest wait when idle, seconds")
        add("--no-backoff", action="store_true", help="always wait --poll when idle")
        add("--max-hold", type=float, default=None, help="seconds until a handler must stop")
        add("--max-attempts", type=int, default=None, help="overrides the jobs' own number")
        add("--kinds", default=None, help="only these kinds, comma-separated")
        add("--name", default=None, help="first part of this worker's name")
        add("--grace", type=float, default=30.0, help="seconds for handlers after SIGTERM")
        add("--exit-when-stuck", action="store_true", help="exit 75 when a handler is stuck")
        add("--until-idle", action="store_true", help="end when nothing is ready to run")
        add("--database", default=given.DATABASE, help="alias of the database")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the worker; exit 1 with a message when it cannot work at all."""
        using = options["database"]
        try:
            failpoints.arm_from_environment()
            serving.wait_for_schema(using)
            worker = Worker(
                _names(options["queues"]),
                concurrency=options["concurrency"],
                ttl=options["ttl"],
                poll=options["poll"],
                max_poll=options["max_poll"],
                backoff=not options["no_backoff"],
                max_hold=options["max_hold"],
                max_attempts=options["max_attempts"],
                kinds=None if options["kinds"] is None else _names(options["kinds"]),
                name=options["name"],
                using=using,
            )
        except (ValueError, TypeError, UnknownKind, ImproperlyConfigured) as error:
            raise CommandError(str(error)) from error
        end = serving.serve(
            worker,
            grace=options["grace"],
            until_idle=options["until_idle"],
            exit_when_stuck=options["exit_when_stuck"],
        )
        if not end.clean or end.code:
            # Handlers that do not look at their signal still run: their jobs are given back.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(end.code)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
