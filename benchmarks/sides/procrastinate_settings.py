"""Django settings of procrastinate in its own environment."""

from benchmarks.sides.django_settings import SECRET_KEY, USE_TZ, databases

__all__ = ["SECRET_KEY", "USE_TZ"]

DATABASES = databases()
INSTALLED_APPS = ["procrastinate.contrib.django"]
PROCRASTINATE_IMPORT_PATHS = ["benchmarks.sides.procrastinate_app"]
