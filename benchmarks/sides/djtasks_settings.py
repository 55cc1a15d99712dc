"""Django settings of django-tasks-db in its own environment (Django 6.1, Python 3.13)."""

import os

from psycopg.conninfo import conninfo_to_dict

_where = conninfo_to_dict(os.environ["BENCH_DSN"])

SECRET_KEY = "only-for-a-measurement"  # noqa: S105 - nothing is signed with it
USE_TZ = True
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _where["dbname"],
        "USER": _where.get("user", ""),
        "PASSWORD": _where.get("password", ""),
        "HOST": _where.get("host", ""),
        "PORT": _where.get("port", ""),
        # kept open: a connection per task is not what this measures
        "CONN_MAX_AGE": None,
    }
}
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "django_tasks_db"]
TASKS = {"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}}
