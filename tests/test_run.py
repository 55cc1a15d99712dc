"""`make test`: one run a database, an honest exit code, and nothing left out in silence."""

import os
from pathlib import Path

import pytest

from tests import run

pytestmark = pytest.mark.sqlite("the script is the same whatever database this run has")

# The sample lies outside the tree: name the configuration that it would find there.
ARGUMENTS = ["-c", str(run.ROOT / "pyproject.toml"), "-p", "no:cacheprovider"]
MISSING = "MariaDB is missing (mariadbd). Debian: apt-get install mariadb-server"


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file that is the whole suite, on SQLite alone and with MariaDB missing."""
    for name in ("CI", "TEST_MYSQL_URL", "COVERAGE_PROCESS_START"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(run, "VENDORS", ("sqlite", "mysql"))
    monkeypatch.setattr(run, "mariadb_missing", lambda: MISSING)
    path = tmp_path / "test_sample.py"
    path.write_text("def test_it_passes():\n    assert True\n")
    return path


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_database_that_is_left_out_is_named_and_fails_in_ci_only(
    suite: Path,
    jobs: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert run.main(["--jobs", jobs, *ARGUMENTS, str(suite)]) == 0
    shown = capfd.readouterr().out
    assert f"!!! NOT TESTED ON MariaDB. {MISSING}" in shown
    assert "1 passed in" in shown
    monkeypatch.setenv("CI", "true")
    assert run.main(["--jobs", jobs, *ARGUMENTS, str(suite)]) == 1


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_failed_run_shows_its_failure_and_fails_the_whole(
    suite: Path, jobs: str, capfd: pytest.CaptureFixture[str]
) -> None:
    suite.write_text("def test_it_fails():\n    assert 'this' == 'that'\n")
    assert run.main(["--jobs", jobs, *ARGUMENTS, str(suite)]) == 1
    shown = capfd.readouterr().out
    assert "assert 'this' == 'that'" in shown
    assert "1 failed in" in shown
    *_, named, verdict = shown.splitlines()
    assert named.endswith("::test_it_fails AssertionError: assert 'this' == 'that'")
    assert verdict == "tests: FAILED on sqlite"


def test_no_test_on_any_database_is_a_failure(suite: Path) -> None:
    assert run.main(["-k", "misspelt", *ARGUMENTS, str(suite)]) == 1


def test_a_run_is_complete_when_a_server_of_mysql_is_named_or_mariadb_is_there(
    suite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run.choose() == (["sqlite"], f"NOT TESTED ON MariaDB. {MISSING}")
    monkeypatch.setenv("TEST_MYSQL_URL", "mysql://root@127.0.0.1/x")
    assert run.choose() == (["sqlite", "mysql"], "")


def test_what_the_fault_tests_have_counted_is_printed_at_the_end(
    suite: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    suite.write_text(
        "import os\n\ndef test_it_tells():\n"
        "    with open(os.environ['GNL_CHAOS_REPORT'], 'a') as report:\n"
        "        report.write('lost 0, doubled 0\\n')\n"
    )
    assert run.main([*ARGUMENTS, str(suite)]) == 0
    shown = capfd.readouterr().out.splitlines()
    assert shown.index("lost 0, doubled 0") > shown.index("=== sqlite")
    assert "GNL_CHAOS_REPORT" not in os.environ
