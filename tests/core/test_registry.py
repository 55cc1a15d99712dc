"""The registry: one piece of code a name, found in `background.py` of the installed apps."""

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured

from gnl_django.core import registry
from gnl_django.core.registry import Registry
from gnl_django.queue.options import kinds


class Entry:
    """Something that knows where it was written."""

    def __init__(self, origin: str) -> None:
        self.origin = origin


@pytest.fixture
def entries() -> Registry[Entry]:
    return Registry("kind")


def test_an_entry_is_found_under_its_name(entries: Registry[Entry]) -> None:
    entry = Entry("a.f")
    entries.register("one", entry)
    assert entries.find("one") is entries.known("one") is entry
    assert entries.find("two") is entries.known("two") is None


def test_names_are_listed_in_order(entries: Registry[Entry]) -> None:
    for name in ("b", "a", "B"):
        entries.register(name, Entry(f"a.{name}"))
    assert list(entries) == ["B", "a", "b"]


def test_the_same_code_again_replaces_and_other_code_is_refused(entries: Registry[Entry]) -> None:
    entries.register("one", Entry("shop.f"))
    again = Entry("shop.f")
    entries.register("one", again)
    assert entries.known("one") is again
    with pytest.raises(ImproperlyConfigured, match=r"kind 'one'.*shop\.f.*other\.f"):
        entries.register("one", Entry("other.f"))
    assert entries.known("one") is again


def test_a_forgotten_name_is_free(entries: Registry[Entry]) -> None:
    entries.register("one", Entry("shop.f"))
    entries.forget("one")
    entries.forget("one")
    assert entries.known("one") is None
    entries.register("one", Entry("other.f"))


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[Registry[Any]]:
    """Install three apps: one whose background fails to import, one without, one with a kind."""
    for name, source in {
        "gnl_test_broken": "raise RuntimeError('cannot be imported')",
        "gnl_test_plain": None,
        "gnl_test_shop": (
            "from gnl_django import job\n\n@job('gnltest.sell')\ndef sell(payload):\n    pass\n"
        ),
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
        if source is not None:
            (tmp_path / name / "background.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_discovered", False)
    settings.INSTALLED_APPS = [
        *settings.INSTALLED_APPS,
        *("gnl_test_broken", "gnl_test_plain", "gnl_test_shop"),
    ]
    yield kinds
    kinds.forget("gnltest.sell")
    for name in [name for name in sys.modules if name.startswith("gnl_test_")]:
        del sys.modules[name]


def test_a_background_that_cannot_be_imported_is_logged_and_the_others_serve(
    shop: Registry[Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        assert registry.autodiscover() is True
    assert shop.known("gnltest.sell") is not None
    (record,) = caplog.records
    assert "gnl_test_broken.background" in record.getMessage()
    assert record.exc_info is not None
    assert "cannot be imported" in str(record.exc_info[1])


def test_the_apps_are_searched_once(shop: Registry[Any]) -> None:
    assert registry.autodiscover() is True
    assert registry.autodiscover() is False


def test_a_name_that_is_asked_for_starts_the_search(shop: Registry[Any]) -> None:
    assert shop.known("gnltest.sell") is None
    found = shop.find("gnltest.sell")
    assert found is not None
    assert found.origin == "gnl_test_shop.background.sell"


def test_nothing_is_searched_before_the_apps_are_ready(
    shop: Registry[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apps, "ready", False)
    assert registry.autodiscover() is False
    assert shop.find("gnltest.sell") is None
    monkeypatch.setattr(apps, "ready", True)
    assert shop.find("gnltest.sell") is not None


def test_a_kind_that_two_apps_declare_stops_the_search(shop: Registry[Any], tmp_path: Path) -> None:
    source = (tmp_path / "gnl_test_shop" / "background.py").read_text()
    (tmp_path / "gnl_test_plain" / "background.py").write_text(source.replace("def sell", "def b"))
    with pytest.raises(ImproperlyConfigured, match=r"gnltest\.sell"):
        registry.autodiscover()


def test_no_name_from_outside_is_imported(shop: Registry[Any]) -> None:
    assert shop.find("os.system") is None
    assert shop.find("gnl_test_broken.background.x") is None
