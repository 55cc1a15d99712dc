"""The search for Tasks in the apps' `tasks` modules."""

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("django.tasks", reason="django.tasks came with Django 6.0")

from django.apps import apps

from gnl_django.core import registry
from gnl_django.queue.options import kinds
from gnl_django.queue.tasks.discovery import discover
from gnl_django.queue.tasks.kind import TaskKind

SOURCE = """
from django.tasks import task
from gnltest_post.letters import write

@task
def send(to):
    pass

@task(backend="dummy")
def post(to):
    pass
"""
LETTERS = """
from django.tasks import task

@task(backend="dummy")
def write(to):
    pass
"""


@pytest.fixture
def post(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[Path]:
    """Install an app with tasks, one whose tasks fail to import, and one without."""
    sources = {"gnltest_broken": "raise RuntimeError('no')", "gnltest_post": SOURCE}
    for name in (*sources, "gnltest_plain"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    for name, source in sources.items():
        (tmp_path / name / "tasks.py").write_text(source)
    (tmp_path / "gnltest_post" / "letters.py").write_text(LETTERS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_discovered", False)
    names = ["gnltest_broken", "gnltest_plain", "gnltest_post"]
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, *names]
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("gnltest_")]:
        del sys.modules[name]
    for name in [name for name in kinds if name.startswith("gnltest_")]:
        kinds.forget(name)


def test_the_search_finds_the_tasks_of_every_app(
    post: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        assert registry.autodiscover() is True
    found = [name for name in kinds if name.startswith("gnltest_")]
    assert found == [
        "gnltest_post.letters.write",
        "gnltest_post.tasks.post",
        "gnltest_post.tasks.send",
    ]
    assert all(isinstance(kinds.known(name), TaskKind) for name in found)
    (record,) = caplog.records
    assert "gnltest_broken.tasks" in record.getMessage()


def test_a_kind_that_is_asked_for_starts_the_search(post: Path) -> None:
    assert kinds.known("gnltest_post.tasks.send") is None
    assert kinds.find("gnltest_post.tasks.send") is not None


@pytest.mark.parametrize(
    "setting",
    [
        {"default": {"BACKEND": "django.tasks.backends.dummy.DummyBackend"}},
        {"default": {"BACKEND": "does.not.Exist"}},
        {},
    ],
)
def test_no_module_is_imported_unless_a_backend_is_ours(
    post: Path, settings: Any, setting: dict[str, Any]
) -> None:
    settings.TASKS = setting
    discover(apps.get_app_config("gnltest_post"))
    assert "gnltest_post.tasks" not in sys.modules


def test_the_search_is_added_once() -> None:
    assert registry._discoverers.count(discover) == 1
    registry.add_discoverer(discover)
    assert registry._discoverers.count(discover) == 1
