"""`gnl_django.tasks` can be imported everywhere; what it needs is asked for when it is used."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import django
import pytest
from django.core import checks
from django.core.exceptions import ImproperlyConfigured

from gnl_django import tasks
from gnl_django.checks import check_tasks

OLD = django.VERSION < (6, 0)
PARAMS = {"BACKEND": "gnl_django.tasks.GnlBackend"}
ROOT = Path(__file__).resolve().parent.parent


def in_a_new_process(source: str) -> str:
    """Run a script with settings but without django.setup(); return what it prints."""
    environ = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    environ.pop("GNL_TEST_PARENT", None)
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", source],
        capture_output=True,
        text=True,
        env=environ,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.row("queue", "C156")
def test_the_module_is_imported_before_the_apps_are_ready() -> None:
    source = """
import sys
import gnl_django.tasks
from django.apps import apps
print(apps.ready, "gnl_django.models" in sys.modules, "gnl_django.queue.models" in sys.modules)
"""
    assert in_a_new_process(source) == "False False False"


@pytest.mark.skipif(OLD, reason="django.tasks came with Django 6.0")
def test_tasks_are_declared_before_the_apps_are_ready() -> None:
    source = """
import sys
import tests.app.tasks as tasks
from django.apps import apps
late = tasks.add.using(priority=3, max_attempts=7, key="k", org="acme")
print(apps.ready, type(late).__name__, late.max_attempts, "gnl_django.queue.models" in sys.modules)
"""
    assert in_a_new_process(source) == "False GnlTask 7 False"


@pytest.mark.skipif(not OLD, reason="this Django has tasks")
@pytest.mark.parametrize("name", ["GnlBackend", "GnlTask"])
def test_without_djangos_tasks_only_the_use_is_refused(name: str) -> None:
    used = getattr(tasks, name)
    with pytest.raises(ImproperlyConfigured, match=rf"{name} needs Django 6\.0 or newer"):
        used("default", PARAMS)


@pytest.mark.skipif(not OLD, reason="this Django has tasks, and the backend checks itself")
def test_without_djangos_tasks_a_setting_that_names_the_backend_is_an_error(settings: Any) -> None:
    assert check_tasks() == []
    settings.TASKS = {"default": PARAMS, "other": {"BACKEND": "elsewhere.Backend"}}
    (found,) = check_tasks()
    assert isinstance(found, checks.Error)
    assert found.id == "gnl_django.E023"
    assert "TASKS['default']" in found.msg


@pytest.mark.skipif(OLD, reason="django.tasks came with Django 6.0")
def test_the_front_door_hands_out_the_backend_of_the_queue() -> None:
    from gnl_django.queue.tasks.backend import GnlBackend
    from gnl_django.queue.tasks.task import GnlTask

    assert tasks.GnlBackend is GnlBackend
    assert tasks.GnlTask is GnlTask
    assert list(check_tasks()) == []
