"""Settings of the test run: the test project, with the handlers of `tests.app` beside it.

The test run (tests.database) and the child processes that it spawns (tests.procs) both use them;
the environment tells the two apart.
"""

import os

import django

from testproject.settings import *  # noqa: F403
from testproject.settings import DATABASES
from testproject.settings import INSTALLED_APPS as PROJECT_APPS

INSTALLED_APPS = [*PROJECT_APPS, "tests.app"]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

if "GNL_TEST_DATABASE" in os.environ:
    DATABASES["default"]["TEST"] = {"NAME": os.environ["GNL_TEST_DATABASE"]}
if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    # Nobody pulls the plug on a test run. Processes and threads still see what is committed.
    DATABASES["default"]["OPTIONS"]["init_command"] += "PRAGMA synchronous=OFF;"

if django.VERSION >= (6, 0):
    OURS = "gnl_django.tasks.GnlBackend"
    TASKS = {
        "default": {"BACKEND": OURS, "QUEUES": ["default", "low"]},
        "any": {"BACKEND": OURS, "QUEUES": [], "OPTIONS": {"using": "default"}},
        "dummy": {"BACKEND": "django.tasks.backends.dummy.DummyBackend"},
        "missing": {"BACKEND": "does.not.Exist"},
    }

# Both switches are needed; the other is the environment variable itself.
GNL = {"FAILPOINTS": "GNL_FAILPOINTS" in os.environ}
if "GNL_TEST_POOLED" in os.environ:
    # A pooler in transaction mode keeps no session: no cursor over transactions, no LISTEN.
    DATABASES["default"]["DISABLE_SERVER_SIDE_CURSORS"] = True
    GNL["NOTIFY"] = False
if "GNL_TEST_HEARTBEAT" in os.environ:
    GNL["HEARTBEAT"] = float(os.environ["GNL_TEST_HEARTBEAT"])

if "GNL_TEST_PARENT" in os.environ:
    from tests.procs import end_with

    end_with(int(os.environ["GNL_TEST_PARENT"]))
    os.environ["GNL_TEST_PARENT"] = str(os.getpid())  # a child's own children end with it
