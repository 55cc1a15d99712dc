"""Django's name for the app; its handlers are found in `background`."""

from django.apps import AppConfig


class LibraryConfig(AppConfig):
    """The index of installed source files."""

    name = "testproject.library"
    verbose_name = "Library"
