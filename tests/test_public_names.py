"""What `from gnl_django import ..` offers, and that asking for nothing costs nothing."""

import subprocess
import sys

import pytest

import gnl_django

CONTRACT = {
    *("job", "enqueue", "enqueue_many", "NewJob", "JobKind", "JobContext"),
    *("retry_job", "retry_jobs", "cancel_job", "BulkResult", "Worker", "WorkerMetrics"),
    *("GnlError", "UnknownKind", "InvalidPayload", "QueueDepthExceeded"),
    *("PermanentFailure", "ExecutionRevoked"),
}


def run(code: str) -> None:
    """Run `code` in a fresh interpreter without settings."""
    subprocess.run([sys.executable, "-X", "dev", "-c", code], check=True, env={"PATH": ""})


def test_the_promised_names_are_public() -> None:
    assert set(gnl_django.__all__) >= CONTRACT
    assert gnl_django.__all__ == sorted(gnl_django.__all__)


@pytest.mark.parametrize("name", gnl_django.__all__)
def test_every_public_name_is_there_and_explains_itself(name: str) -> None:
    value = getattr(gnl_django, name)
    assert value.__doc__
    assert value.__name__ == name
    assert value.__module__.startswith("gnl_django.")


def test_a_public_name_is_the_thing_itself_and_no_copy() -> None:
    from gnl_django.queue.api import enqueue

    assert gnl_django.enqueue is enqueue


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        gnl_django.nonsense  # noqa: B018 - the look-up is the test
    with pytest.raises(ImportError):
        run_import("nonsense")


def run_import(name: str) -> None:
    exec(f"from gnl_django import {name}", {})  # noqa: S102 - a constant of this file


def test_the_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    assert gnl_django.__version__ == version("gnl-django")


def test_the_import_loads_no_django_and_starts_no_thread() -> None:
    run(
        "import sys, threading, gnl_django; "
        "assert 'django' not in sys.modules; "
        "assert threading.active_count() == 1"
    )


def test_the_decorator_can_be_used_before_djangos_apps_are_ready() -> None:
    run(
        "from django.conf import settings; settings.configure(); "
        "import threading; from gnl_django import job, NewJob, PermanentFailure\n"
        "@job('a.b')\n"
        "def handle(payload: dict) -> None: ...\n"
        "assert handle({}) is None; NewJob(handle); assert threading.active_count() == 1"
    )
