"""Settings of the test run: the test project, with the handlers of `tests.app` beside it."""

from testproject.settings import *  # noqa: F403
from testproject.settings import INSTALLED_APPS as PROJECT_APPS

INSTALLED_APPS = [*PROJECT_APPS, "tests.app"]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
