"""`manage.py gnl_worker`: runs a Worker until SIGTERM, SIGINT or, with --until-idle, the end."""

from argparse import ArgumentParser
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from gnl_django import conf
from gnl_django.core import failpoints
from gnl_django.management import ready
from gnl_django.queue import process


class Command(BaseCommand):
    """Arguments only; `queue.process` does the work (queue.md 3.9, R46, R64)."""

    help = "Run the jobs of one or more queues."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        given = conf.readable()
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
        add("--processes", type=int, default=None, help="as many workers under a supervisor")
        add("--max-jobs", type=int, default=None, help="end after so many jobs")
        add("--max-rss", type=int, default=None, help="end when memory reaches so many MiB")
        add("--reload", action="store_true", help="start again when code changes (development)")
        add("--database", default=given.DATABASE, help="alias of the database")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the worker; exit 1 with a message when it cannot work at all."""
        try:
            conf.settings()
            failpoints.arm_from_environment()
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from error
        if options["grace"] < 0:
            raise CommandError("--grace: seconds, 0 or more")
        if options["ttl"] < 3 * options["poll"]:
            raise CommandError("--ttl must be at least three times --poll")
        ready.log_to_stderr(options["verbosity"])
        process.run(options)
