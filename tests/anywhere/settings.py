"""Settings of child processes that run under another configuration: GNL_TEST_ANYWHERE holds it.

JSON of `{"settings": {..}, "default": changes of DATABASES["default"], "aliases": further aliases,
each as changes of the default}`.
"""

import copy
import json
import os

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES, GNL
from tests.settings import INSTALLED_APPS as TESTED_APPS

INSTALLED_APPS = [*TESTED_APPS, "tests.anywhere"]
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(levelname)s %(name)s %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "loggers": {
        "gnl_django": {"handlers": ["console"], "level": "INFO"},
        "psycopg.pool": {"handlers": ["console"], "level": "WARNING"},
    },
}
changes = json.loads(os.environ.get("GNL_TEST_ANYWHERE", "{}"))
DATABASES["default"].update(changes.get("default", {}))
for alias, different in changes.get("aliases", {}).items():
    DATABASES[alias] = {**copy.deepcopy(DATABASES["default"]), **different}
GNL.update(changes.get("settings", {}).pop("GNL", {}))
globals().update(changes.get("settings", {}))

if "GNL_TEST_OTEL" in os.environ:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

    provider = TracerProvider()
    provider.add_span_processor(
        BatchSpanProcessor(ConsoleSpanExporter(), schedule_delay_millis=600_000)
    )
    trace.set_tracer_provider(provider)
