"""Front door: Django looks here for the admin's pages; `gnl_django.studio` holds them."""

from gnl_django.studio.jobs import JobAdmin

__all__ = ["JobAdmin"]
