"""Settings of the measured worker and producer: the test project with the handler beside it.

The demo's handlers stay installed, so that the worker's memory is that of a real project.
"""

from testproject.settings import *  # noqa: F403
from testproject.settings import DATABASES
from testproject.settings import INSTALLED_APPS as PROJECT_APPS

INSTALLED_APPS = [*PROJECT_APPS, "benchmarks.app"]

# kept open, as the peers' are: docs/operating.md says so of workers
DATABASES["default"]["CONN_MAX_AGE"] = None
