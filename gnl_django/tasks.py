"""Front door: the backend of django.tasks, `"BACKEND": "gnl_django.tasks.GnlBackend"`.

Imports on every Django, because others import each app's `tasks` (Celery does). Where Django has no
tasks, only using the names below is an error (queue.md R54).
"""

from typing import TYPE_CHECKING, Any, NoReturn

import django
from django.core.exceptions import ImproperlyConfigured

if TYPE_CHECKING or django.VERSION >= (6, 0):
    from gnl_django.queue.tasks.backend import GnlBackend
    from gnl_django.queue.tasks.task import GnlTask
else:

    class _Missing:
        def __new__(cls, *args: Any, **kwargs: Any) -> NoReturn:
            raise ImproperlyConfigured(
                f"{cls.__name__} needs Django 6.0 or newer, which has django.tasks; this is "
                f"{django.get_version()}"
            )

    class GnlBackend(_Missing):
        """Stands for the backend on a Django without tasks."""

    class GnlTask(_Missing):
        """Stands for its Task on a Django without tasks."""


__all__ = ["GnlBackend", "GnlTask"]
