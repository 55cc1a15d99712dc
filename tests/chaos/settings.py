"""Settings of the children of fault tests: those of the test run, with handlers that keep a log."""

import os

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as TESTED_APPS

INSTALLED_APPS = [*TESTED_APPS, "tests.chaos", "tests.anywhere"]
# One long-lived process makes children for many tests: the environment of each decides.
GNL = {"FAILPOINTS": True}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(levelname)s %(name)s %(message)s"}},
    "handlers": {
        "console": {"class": "logging.StreamHandler", "formatter": "line"},
    },
    "loggers": {"gnl_django": {"handlers": ["console"], "level": "INFO"}},
}
if "CONN_MAX_AGE" in os.environ:
    DATABASES["default"]["CONN_MAX_AGE"] = int(os.environ["CONN_MAX_AGE"])  # noqa: F405
