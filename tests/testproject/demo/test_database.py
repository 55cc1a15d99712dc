"""Where the demo's private server keeps its data."""

import os
from pathlib import Path

import pytest

from testproject.demo.database import server_directory
from testproject.servers import PrivatePostgres


def test_a_private_server_keeps_its_data_in_the_demos_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert server_directory(PrivatePostgres, tmp_path) == tmp_path / "postgresql"


def test_root_uses_a_temporary_directory_where_the_servers_user_may_not_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert server_directory(PrivatePostgres, tmp_path) is None
