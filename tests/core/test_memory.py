"""How much memory a process holds."""

import sys
from pathlib import Path

import psutil
import pytest

from gnl_django.core import memory


def test_the_resident_memory_is_about_what_the_system_says() -> None:
    found = memory.rss_kib()
    assert found is not None
    assert found == pytest.approx(psutil.Process().memory_info().rss / 1024, rel=0.2)


def test_where_there_is_no_proc_the_highest_so_far_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(memory, "_STATM", tmp_path / "none")
    found = memory.rss_kib()
    assert found is not None
    assert found >= 0.8 * psutil.Process().memory_info().rss / 1024
    monkeypatch.setattr(sys, "platform", "darwin")
    assert memory.rss_kib() == pytest.approx(found / 1024, rel=0.2)


def test_where_nothing_tells_it_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "_STATM", tmp_path / "none")
    monkeypatch.setitem(sys.modules, "resource", None)
    assert memory.rss_kib() is None
