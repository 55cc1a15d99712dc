"""`gnl_worker` as processes: several under a supervisor, fresh ones, new code (R64)."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from time import monotonic

import psutil
import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from gnl_django import NewJob, enqueue, enqueue_many
from gnl_django.core.models import Process
from gnl_django.queue import process
from gnl_django.queue.models import Attempt, Job
from tests.procs import Proc, Spawner
from tests.support import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

ACT = "tests.act"
WORKER = ["gnl_worker", "--poll", "0.05", "--max-poll", "0.1"]


def states() -> set[str]:
    return set(Job.objects.values_list("state", flat=True))


def children(proc: Proc) -> set[int]:
    return {child.pid for child in psutil.Process(proc.pid).children()}


# several


def test_several_processes_share_the_work_and_a_dead_one_is_replaced(spawn: Spawner) -> None:
    supervisor = spawn([*WORKER, "--processes", "2", "--name", "mine", "--grace", "20"])
    wait_until(lambda: Process.objects.count() == 2, 30, describe=supervisor.output)
    rows = list(Process.objects.order_by("id"))
    assert {row.pid for row in rows} == children(supervisor)
    assert supervisor.pid not in {row.pid for row in rows}
    os.kill(rows[0].pid, signal.SIGKILL)
    wait_until(lambda: Process.objects.count() == 3, 30, describe=supervisor.output)
    job_id = enqueue(ACT, {"do": "short"})
    supervisor.wait_line(f"act {job_id} attempt 1 starts")
    supervisor.term()
    assert supervisor.wait() == 0
    assert states() == {"succeeded"}
    assert not Attempt.objects.exists()
    ended = Process.objects.filter(stopped_at__isnull=False)
    assert set(ended.values_list("pid", flat=True)).isdisjoint({rows[0].pid})
    assert ended.count() == 2
    assert f"Process {rows[0].pid} ended with -9" in supervisor.output()


def test_children_end_when_nothing_is_left_to_do_and_then_the_supervisor(spawn: Spawner) -> None:
    enqueue_many([NewJob("tests.quick", at) for at in range(50)])
    supervisor = spawn([*WORKER, "--processes", "2", "--until-idle"])
    assert supervisor.wait(40) == 0, supervisor.output()
    assert states() == {"succeeded"}
    assert Process.objects.filter(stopped_at__isnull=False).count() == 2


def test_what_a_child_would_refuse_is_refused_before_one_is_started(spawn: Spawner) -> None:
    supervisor = spawn([*WORKER, "--processes", "2", "--kinds", "tests.nobody"])
    assert supervisor.wait() == 1
    assert supervisor.output().count("no handler registered for kind 'tests.nobody'") == 1
    assert not Process.objects.exists()


# fresh ones


def test_a_worker_alone_ends_with_0_after_its_jobs(spawn: Spawner) -> None:
    jobs = enqueue_many([NewJob(ACT, {"do": "short"}) for _ in range(5)])
    worker = spawn([*WORKER, "--max-jobs", "2"])
    assert worker.wait() == 0, worker.output()
    stored = Job.objects.filter(id__in=jobs)
    assert sorted(stored.values_list("state", flat=True)) == ["ready"] * 3 + ["succeeded"] * 2
    assert not Attempt.objects.exists()


def test_under_a_supervisor_a_fresh_process_goes_on_at_once(spawn: Spawner) -> None:
    enqueue_many([NewJob(ACT, {"do": "end"}) for _ in range(3)])
    worker = spawn([*WORKER, "--processes", "1", "--max-jobs", "1", "--until-idle"])
    assert worker.wait(60) == 0, worker.output()
    assert states() == {"succeeded"}
    workers = set(Job.objects.values_list("worker", flat=True))
    assert len(workers) == 3
    assert "ended with" not in worker.output()


def test_a_worker_that_has_grown_too_big_ends_after_a_job(spawn: Spawner) -> None:
    worker = spawn([*WORKER, "--max-rss", "1"])
    wait_until(lambda: Process.objects.exists(), 20, describe=worker.output)
    assert worker.running
    enqueue(ACT, {"do": "short"})
    assert worker.wait() == 0, worker.output()
    assert states() == {"succeeded"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--processes", "0"], "--processes: 0"),
        (["--processes", "1001"], "--processes: 1001"),
        (["--max-jobs", "0"], "--max-jobs: 0"),
        (["--max-rss", "-1"], "--max-rss: -1"),
        (["--reload", "--processes", "2"], "--reload goes without --processes"),
        (["--reload", "--until-idle"], "--reload goes without --until-idle"),
    ],
)
def test_numbers_and_options_that_make_no_sense_are_refused(
    options: list[str], message: str
) -> None:
    with pytest.raises(CommandError, match=message):
        call_command("gnl_worker", *options)


def test_a_limit_of_memory_is_refused_where_memory_is_not_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "rss_kib", lambda: None)
    with pytest.raises(CommandError, match="--max-rss"):
        call_command("gnl_worker", "--max-rss", "100")


# new code

HANDLER = """
from gnl_django import job

@job("reloaded.say")
def say(payload):
    print(f"{payload} by WORD code", flush=True)
"""
SETTINGS = """
from tests.settings import *
INSTALLED_APPS = [*INSTALLED_APPS, "reloaded"]
"""


@pytest.fixture
def project(tmp_path: Path) -> tuple[Path, Mapping[str, str]]:
    """Return the file of a handler and the environment of a project that has it."""
    app = tmp_path / "project" / "reloaded"
    app.mkdir(parents=True)
    (app / "__init__.py").touch()
    (app.parent / "reloaded_settings.py").write_text(SETTINGS)
    handler = app / "background.py"
    handler.write_text(HANDLER.replace("WORD", "old"))
    root = Path(process.__file__).resolve().parents[2]
    path = f"{app.parent}{os.pathsep}{root}"
    return handler, {"PYTHONPATH": path, "DJANGO_SETTINGS_MODULE": "reloaded_settings"}


def put(word: str, kind: str = "reloaded.say") -> int:
    """Enqueue a job of a kind that this process does not know."""
    made = enqueue("tests.quick", 1, queue="aside")
    Job.objects.filter(id=made).update(kind=kind, payload=word, queue="default")
    return made


class Editor:
    """Somebody who writes new code, again and again until it is seen.

    A change before the reloader's first look at the file is none to it.
    """

    EVERY = 1.5  # seconds; the reloader looks once a second

    def __init__(self, file: Path, text: str) -> None:
        self._file = file
        self._text = text
        self._at = 0.0

    def writes(self) -> bool:
        """Write now and then; always true."""
        if monotonic() > self._at + self.EVERY:
            self._at = monotonic()
            self._file.write_text(self._text)
        return True


def test_a_change_of_code_starts_the_worker_again_and_a_signal_ends_it(
    spawn: Spawner, project: tuple[Path, Mapping[str, str]]
) -> None:
    handler, environment = project
    put("first")
    worker = spawn([*WORKER, "--reload"], env=environment)
    worker.wait_line("first by old code", 30)
    wait_until(lambda: states() == {"succeeded"})
    wait_until(Process.objects.exists, describe=worker.output)  # its heartbeat writes it
    old = Process.objects.get()
    editor = Editor(handler, HANDLER.replace("WORD", "new"))
    wait_until(
        lambda: editor.writes() and Process.objects.exclude(id=old.id).exists(),
        40,
        describe=worker.output,
    )
    assert Process.objects.get(id=old.id).stopped_at is not None
    put("second")
    worker.wait_line("second by new code", 30)
    worker.term()
    worker.wait()


def test_a_worker_that_cannot_start_waits_for_a_change_of_code(
    spawn: Spawner, project: tuple[Path, Mapping[str, str]]
) -> None:
    handler, environment = project
    worker = spawn([*WORKER, "--reload", "--kinds", "reloaded.later"], env=environment)
    worker.wait_line("Waiting for a change of code.", 30)
    put("third", "reloaded.later")
    editor = Editor(handler, HANDLER.replace("reloaded.say", "reloaded.later"))
    wait_until(
        lambda: editor.writes() and "third by WORD code" in worker.output(),
        40,
        describe=worker.output,
    )
    worker.term()
    worker.wait()
