"""What every command asks first: settings, alias and tables are in order. Else words, no traceback.

Called by the operators' commands; the worker waits for its database instead (queue.serving).
"""

import logging

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.db import connections

from gnl_django import conf
from gnl_django.core.db import Fault, fault_of
from gnl_django.queue.serving import missing_migrations

LINE = "%(asctime)s %(levelname)s %(message)s"
LEVELS = {0: logging.WARNING, 1: logging.INFO, 2: logging.DEBUG, 3: logging.DEBUG}


def database(alias: str | None) -> str:
    """Return the alias to work on (None: GNL["DATABASE"]); CommandError when it does not serve."""
    try:
        using = alias or conf.settings().DATABASE
    except ImproperlyConfigured as error:
        raise CommandError(str(error)) from error
    if using not in connections:
        raise CommandError(f"DATABASES has no alias {using!r}")
    try:
        missing = missing_migrations(using)
    except Exception as error:
        if fault_of(error) is not Fault.CONNECTION:
            raise
        words = str(error).strip().split("\n")[0][:200]
        raise CommandError(f"The database {using!r} cannot be reached: {words}") from error
    if missing:
        raise CommandError(
            f"migrations of gnl_django are not applied on {using!r}: {', '.join(missing)}; "
            "run `manage.py migrate` first"
        )
    return using


def log_to_stderr(verbosity: int) -> None:
    """Show the package's log lines, unless the project's LOGGING does so already."""
    logger = logging.getLogger("gnl_django")
    if logger.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(LINE))
    logger.addHandler(handler)
    logger.setLevel(LEVELS.get(verbosity, logging.INFO))
