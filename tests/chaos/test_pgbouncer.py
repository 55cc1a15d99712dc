"""C145: the suite and a storm of kills behind a PgBouncer in transaction mode (queue.md R51).

The suite is a pytest run of its own with `--pgbouncer`. Left out are the tests of LISTEN, which is
off there, and those that reach for a session of their own on purpose.
"""

import os
import subprocess
import sys
from typing import Any

import pytest

from tests.chaos.conftest import Run
from tests.chaos.test_nemesis import SECONDS, play
from tests.history import Recorder
from tests.pgbouncer import PrivatePgBouncer
from tests.procs import ROOT

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.postgres("PgBouncer is for PostgreSQL"),
    pytest.mark.row("queue", "C145"),
]

SUITE = ("tests/conformance", "tests/queue", "tests/management/test_gnl_worker.py")
LEFT_OUT = {
    "tests/conformance/test_wakeups.py": "LISTEN",
    "tests/conformance/test_pauses.py::test_with_notify_a_resume_elsewhere_is_seen"
    "_at_once": "LISTEN",
    "tests/queue/test_worker.py::test_an_outcome_outlives_the_control_connection_and_the_handler"
    "_runs_once": "ends the control connection's session by its number",
    "tests/management/test_gnl_worker.py::test_a_database_without_our_tables_is_refused_with_a"
    "_message": "drops a database to which the pooler is still connected",
}


@pytest.mark.timeout(1200)
def test_the_suite_passes_behind_a_pooler(pooler: PrivatePgBouncer) -> None:
    left_out = [f"--deselect={name}" for name in LEFT_OUT]
    done = subprocess.run(
        [
            *(sys.executable, "-X", "dev", "-m", "pytest", "--db=postgresql", "--pgbouncer"),
            *("-q", "-p", "no:cacheprovider", "-m", "not chaos and not slow"),
            *SUITE,
            *left_out,
        ],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "DATABASE_URL"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:]


@pytest.mark.timeout(1800)
@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("chaos_kinds")
def test_a_storm_of_kills_behind_a_pooler_loses_and_doubles_nothing(
    pooler: PrivatePgBouncer, run: Run, worker: Run, recorder: Recorder
) -> None:
    database = {"PORT": str(pooler.port), "DISABLE_SERVER_SIDE_CURSORS": True}

    def pooled(start: Run) -> Run:
        return lambda *args, **options: start(*args, database=database, **options)

    play(pooled(run), pooled(worker), recorder, min(SECONDS, 60.0))


def test_what_is_left_out_still_exists() -> None:
    for name in LEFT_OUT:
        path, _, function = name.partition("::")
        assert (
            f"def {function}" in (ROOT / path).read_text() if function else (ROOT / path).exists()
        )


def test_the_option_is_refused_for_other_databases(tmp_path: Any) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--db=sqlite", "--pgbouncer", "tests/test_run.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "--pgbouncer goes with --db=postgresql" in done.stdout + done.stderr
