"""Child processes of the tests: signals, output, rendezvous, and their end with the run."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from tests.procs import Spawner
from tests.support import wait_until

PASS_POINTS = """
import django
django.setup()
from gnl_django.core import failpoints
failpoints.arm_from_environment()
for number in (1, 2):
    failpoints.hit("claim.committed")
    print("passed", number)
"""
SLEEP = "import django, threading; django.setup(); print('up'); threading.Event().wait(60)"


def test_a_child_sees_the_rows_that_the_test_committed(spawn: Spawner) -> None:
    from django.contrib.auth.models import User

    User.objects.create(username="committed")
    child = spawn(
        [
            "shell",
            "-v0",
            "-c",
            "from django.contrib.auth.models import User; print(User.objects.get().username)",
        ]
    )
    assert child.wait() == 0, child.output()
    assert child.wait_line("committed") == "committed"


def test_a_child_waits_at_its_fail_point_until_it_is_released(spawn: Spawner) -> None:
    child = spawn([], python=["-c", PASS_POINTS], failpoints={"claim.committed": "wait@2"})
    child.wait_point("claim.committed")
    assert "passed 1" in child.output()
    assert "passed 2" not in child.output()
    child.release("claim.committed")
    assert child.wait() == 0
    assert "passed 2" in child.output()


def test_a_child_is_killed_or_stopped_at_its_fail_point(spawn: Spawner) -> None:
    killed = spawn([], python=["-c", PASS_POINTS], failpoints="claim.committed=kill@2")
    stopped = spawn([], python=["-c", PASS_POINTS], failpoints="claim.committed=stop@1")
    assert killed.wait() == -signal.SIGKILL
    assert "passed 1" in killed.output()
    stopped.wait_stopped()
    assert "passed 1" not in stopped.output()
    stopped.cont()
    assert stopped.wait() == 0


def test_a_child_that_ends_too_soon_shows_its_output(spawn: Spawner) -> None:
    child = spawn(["no_such_command"])
    with pytest.raises(AssertionError, match="Unknown command: 'no_such_command'"):
        child.wait_line("never written")


def test_a_child_ends_with_the_process_that_started_it(spawn: Spawner) -> None:
    parent = spawn(
        [],
        python=[
            "-c",
            "import os, subprocess, sys, threading\n"
            "os.environ['GNL_TEST_PARENT'] = str(os.getpid())\n"
            f"child = subprocess.Popen([sys.executable, '-c', {SLEEP!r}])\n"
            "print('child', child.pid)\n"
            "threading.Event().wait(60)\n",
        ],
    )
    parent.wait_line("up")
    pid = int(parent.wait_line("child ").split()[1])
    parent.kill()
    wait_until(lambda: not _alive(pid), describe=f"{pid} lives")


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_children_that_still_run_are_ended_after_the_test(
    database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    spawner = Spawner(database_url, tmp_path_factory.mktemp("children"))
    running = spawner([], python=["-c", SLEEP])
    running.wait_line("up")
    running.stop()
    spawner.close()
    assert running.popen.returncode == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(running.pid, 0)


def test_a_wait_for_a_child_has_a_deadline_and_shows_its_output(spawn: Spawner) -> None:
    child = spawn([], python=["-c", SLEEP], failpoints={"claim.committed": "wait"})
    child.wait_line("up")
    for wait in (
        lambda: child.wait(0.05),
        lambda: child.wait_line("never written", 0.05),
        lambda: child.wait_point("claim.committed", 0.05),
        lambda: child.wait_stopped(0.05),
    ):
        with pytest.raises(AssertionError, match=r"0\.05 s; its output:\nup"):
            wait()
    child.term()
    assert child.wait() == -signal.SIGTERM


def test_children_are_started_by_the_main_thread_only(spawn: Spawner) -> None:
    with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError, match="main thread"):
        pool.submit(spawn, ["check"]).result()
