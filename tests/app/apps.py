"""Django's entry to the tests' app."""

from django.apps import AppConfig


class TestsAppConfig(AppConfig):
    """The app `tests.app`, label `tests_app`: `app` alone says too little in an error."""

    name = "tests.app"
    label = "tests_app"
