"""Django settings of the three backends of django.tasks, each in its own environment."""

import os
from typing import Any

from benchmarks.sides.django_settings import SECRET_KEY, USE_TZ, databases

__all__ = ["SECRET_KEY", "USE_TZ"]

_APPS = {"django-tasks-db": "django_tasks_db", "django-ox": "django_ox", "dj-queue": "dj_queue"}
_TASKS: dict[str, dict[str, Any]] = {
    "django-tasks-db": {"BACKEND": "django_tasks_db.DatabaseBackend"},
    "django-ox": {"BACKEND": "django_ox.backend.OxBackend"},
    "dj-queue": {
        "BACKEND": "dj_queue.backend.DjQueueBackend",
        "OPTIONS": {
            # threads of one process, as the others here; its default is a process for each part
            "mode": "async",
            "workers": [{"queues": "*", "threads": int(os.environ.get("BENCH_SLOTS", "1"))}],
        },
    },
}
_name = os.environ["BENCH_BACKEND"]

DATABASES = databases()
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", _APPS[_name]]
TASKS = {"default": _TASKS[_name]}
