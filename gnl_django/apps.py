"""The app; nothing connects, starts a thread or imports users' code here (R47)."""

import django
from django.apps import AppConfig


class GnlDjangoConfig(AppConfig):
    """gnl_django in INSTALLED_APPS."""

    name = "gnl_django"
    verbose_name = "Background work"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks, the floors' hooks, and where handlers are looked for."""
        from gnl_django import checks  # noqa: F401
        from gnl_django.core import registry
        from gnl_django.queue import runs

        registry.add_run_owner(runs.OWNER)

        if django.VERSION >= (6, 0):
            from gnl_django.queue.tasks.discovery import discover

            registry.add_discoverer(discover)
