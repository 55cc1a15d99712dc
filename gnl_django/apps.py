"""The app; nothing connects, starts a thread or imports users' code here (R47)."""

from django.apps import AppConfig


class GnlDjangoConfig(AppConfig):
    """gnl_django in INSTALLED_APPS."""

    name = "gnl_django"
    verbose_name = "Background work"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks."""
        from gnl_django import checks  # noqa: F401
