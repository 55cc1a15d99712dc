"""Finds the Tasks of the installed apps, in their `tasks` modules (queue.md R55).

Added to the search of `core.registry` by AppConfig.ready, where Django has tasks.
"""

from contextlib import suppress

from django.apps import AppConfig
from django.tasks import Task, task_backends
from django.tasks.exceptions import InvalidTask

from gnl_django.core.registry import module_of
from gnl_django.queue.tasks.kind import register
from gnl_django.queue.tasks.results import backend_of, is_ours

MODULE = "tasks"


def discover(app: AppConfig) -> None:
    """Import the app's `tasks` and register the Tasks there, when TASKS names our backend.

    Those declared for another backend too: `.using(backend=..)` may bring them here.
    """
    backends = [backend for alias in task_backends if (backend := backend_of(alias)) is not None]
    if not any(is_ours(backend) for backend in backends):
        return
    module = module_of(app, MODULE)
    for found in list(vars(module).values()) if module is not None else ():
        if isinstance(found, Task):
            with suppress(InvalidTask):  # ours were judged when they were made
                register(found)
