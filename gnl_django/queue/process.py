"""The process of `gnl_worker`, from its options to its exit: alone, one of several, or reloading.

Called by the command in the main thread. A wrong option or database is refused before anything is
started (queue.md 3.9, R46, R52, R64).
"""

import atexit
import logging
import os
import sys
from collections.abc import Mapping
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.utils import autoreload

from gnl_django.core import supervisor, telemetry
from gnl_django.core.db import close_pools
from gnl_django.core.memory import rss_kib
from gnl_django.errors import UnknownKind
from gnl_django.queue import serving
from gnl_django.queue.worker import Worker

logger = logging.getLogger(__name__)

PROCESSES_MAX = 1_000
#: Seconds that handlers get when code changes: whoever edits does not want to wait.
RELOAD_GRACE, RELOAD_NOTICE = 0.5, 0.2


def run(options: Mapping[str, Any]) -> None:
    """Do what the options of `gnl_worker` say; returns at the end of the work.

    Raises CommandError when the process cannot work at all. Ends the process itself when handlers
    outlast their grace, when one is stuck (exit code 75) and when a fresh process is to take its
    place (76, for its supervisor).
    """
    _refuse_what_does_not_fit(options)
    started_by = supervisor.parent()
    if options["reload"]:
        autoreload.run_with_reloader(lambda: _run_until_code_changes(options))
    elif options["processes"] is not None and started_by is None:
        _supervise(options)
    else:
        _run_alone(options, started_by)


def _refuse_what_does_not_fit(options: Mapping[str, Any]) -> None:
    for name, most in (("processes", PROCESSES_MAX), ("max_jobs", 2**63), ("max_rss", 2**40)):
        value = options[name]
        if value is not None and not 1 <= value <= most:
            raise CommandError(f"--{name.replace('_', '-')}: {value} is not within 1 .. {most}")
    if options["max_rss"] is not None and rss_kib() is None:
        raise CommandError("--max-rss: this system does not tell how much memory a process has")
    given = [name for name in ("processes", "max_jobs", "max_rss", "until_idle") if options[name]]
    if options["reload"] and given:
        raise CommandError(f"--reload goes without --{given[0].replace('_', '-')}")


def _prepared(options: Mapping[str, Any]) -> Worker:
    """Wait for the database and return the worker that the options describe."""
    using = options["database"]
    kinds = options["kinds"]
    try:
        serving.wait_for_schema(using)
        return Worker(
            _names(options["queues"]),
            concurrency=options["concurrency"],
            ttl=options["ttl"],
            poll=options["poll"],
            max_poll=options["max_poll"],
            backoff=not options["no_backoff"],
            max_hold=options["max_hold"],
            max_attempts=options["max_attempts"],
            kinds=None if kinds is None else _names(kinds),
            name=options["name"],
            using=using,
        )
    except (ValueError, TypeError, UnknownKind, ImproperlyConfigured) as error:
        raise CommandError(str(error)) from error


def _run_alone(options: Mapping[str, Any], started_by: int | None) -> None:
    worker = _prepared(options)
    limits = serving.Limits(
        jobs=options["max_jobs"],
        rss_kib=None if options["max_rss"] is None else 1024 * options["max_rss"],
    )
    end = serving.serve(
        worker,
        grace=options["grace"],
        until_idle=options["until_idle"],
        exit_when_stuck=options["exit_when_stuck"],
        limits=limits,
        supervisor=started_by,
    )
    if not end.clean or end.code:
        # Handlers that do not look at their signal still run: their jobs are given back.
        telemetry.flush()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code)


def _supervise(options: Mapping[str, Any]) -> None:
    worker = _prepared(options)  # what a child would refuse is refused here
    worker.stop()
    close_pools()  # and all connections: they are no use to a supervisor
    command = autoreload.get_child_arguments()
    count = options["processes"]
    logger.info("%d workers start under process %d", count, os.getpid())
    supervisor.Supervisor(command, count, finishes=options["until_idle"]).run()


def _run_until_code_changes(options: Mapping[str, Any]) -> None:
    """Run in a thread of Django's reloader, which ends the process when a module has changed."""
    try:
        worker = _prepared(options)
    except CommandError as error:
        sys.stderr.write(f"{error}\nWaiting for a change of code.\n")
        return
    atexit.register(worker.shut_down, RELOAD_GRACE, RELOAD_NOTICE)
    serving.serve(worker, grace=RELOAD_GRACE, until_idle=False)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
