"""Django settings of Celery's worker: loaded as in a Django project, with no database to use."""

from benchmarks.sides.django_settings import SECRET_KEY, USE_TZ

__all__ = ["SECRET_KEY", "USE_TZ"]

INSTALLED_APPS: list[str] = []
