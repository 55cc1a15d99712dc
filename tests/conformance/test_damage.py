"""Rows that somebody edited by hand, and code that is gone: the worker survives (C57, C58)."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.utils import DatabaseError

from gnl_django import enqueue, list_all_jobs
from gnl_django.models import Attempt, Job
from gnl_django.queue.options import kinds
from tests.conformance.conftest import Declare, FailPoint, MakeWorker
from tests.conformance.helpers import columns_of, state_of
from tests.procs import ROOT, Spawner
from tests.support import vendor, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def without_checks() -> Iterator[None]:
    """Let this session store what the CHECK constraints refuse; the rows are gone at the end."""
    turn = {
        "sqlite": ("PRAGMA ignore_check_constraints = ON", "PRAGMA ignore_check_constraints = OFF"),
        "mysql": ("SET check_constraint_checks = OFF", "SET check_constraint_checks = ON"),
    }
    with connection.cursor() as cursor:
        if vendor() != "postgresql":
            cursor.execute(turn[vendor()][0])
            yield
            cursor.execute(turn[vendor()][1])
            return
        cursor.execute(
            "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint "
            "WHERE conrelid = 'gnl_django_job'::regclass AND contype = 'c'"
        )
        checks = cursor.fetchall()
        for name, _ in checks:
            cursor.execute(f'ALTER TABLE gnl_django_job DROP CONSTRAINT "{name}"')
        yield
        for name, text in checks:
            cursor.execute(f'ALTER TABLE gnl_django_job ADD CONSTRAINT "{name}" {text} NOT VALID')


@pytest.fixture
def restored() -> Iterator[None]:
    """Take the damaged rows away and let PostgreSQL trust its constraints again."""
    yield
    Job.objects.all().delete()
    if vendor() == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT conname FROM pg_constraint "
                "WHERE conrelid = 'gnl_django_job'::regclass AND NOT convalidated"
            )
            for (name,) in cursor.fetchall():
                cursor.execute(f'ALTER TABLE gnl_django_job VALIDATE CONSTRAINT "{name}"')


DAMAGE: list[dict[str, Any]] = [
    {"state": "lost"},
    {"state": ""},
    {"state": "running"},  # without a token and a lease
    {"state": "ready", "claim_token": "f" * 32},
    {"state": "succeeded"},  # and not finished
]


@pytest.mark.row("queue", "C57")
@pytest.mark.row("reliability", "F23")
def test_rows_that_no_code_of_ours_could_store_harm_no_other_job(
    declare: Declare, make_worker: MakeWorker, restored: None
) -> None:
    kind = declare("t.plain")
    damaged = [kind.enqueue(number) for number in range(len(DAMAGE))]
    for job_id, values in zip(damaged, DAMAGE, strict=True):
        with pytest.raises(IntegrityError), transaction.atomic():
            Job.objects.filter(id=job_id).update(**values)
    with without_checks():
        for job_id, values in zip(damaged, DAMAGE, strict=True):
            Job.objects.filter(id=job_id).update(**values)
    before = {job_id: columns_of(job_id) for job_id in damaged}
    good = kind.enqueue("good")
    worker = make_worker(concurrency=2)
    worker.start()
    wait_until(lambda: state_of(good) == "succeeded")
    late = kind.enqueue("late")
    wait_until(lambda: state_of(late) == "succeeded")
    assert worker.stop(30)
    assert len(list_all_jobs(limit=200).items) == len(damaged) + 2
    for job_id, values in zip(damaged, DAMAGE, strict=True):
        if values["state"] != "ready":  # a row in a ready state is run, whatever else it says
            assert columns_of(job_id) == before[job_id]


@pytest.mark.row("queue", "C57")
@pytest.mark.parametrize("column", ["payload", "meta"])
def test_a_row_whose_json_is_broken_fails_alone(
    declare: Declare, make_worker: MakeWorker, column: str
) -> None:
    kind = declare("t.context", lambda payload, ctx: ctx.meta and None, max_attempts=1)
    bad, good = kind.enqueue("bad"), kind.enqueue("good")
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE gnl_django_job SET {column} = '{{broken' WHERE id = %s", [bad])
    worker = make_worker()
    assert worker.run_until_idle() == 2
    assert state_of(good) == "succeeded"
    assert (state_of(bad), worker.metrics().dead_lettered) == ("dead", 1)
    assert Attempt.objects.get(job=bad).outcome in {"invalid", "failed"}


@pytest.mark.row("queue", "C57")
def test_a_handler_that_is_removed_while_its_job_is_claimed_costs_no_attempt(
    declare: Declare, make_worker: MakeWorker, failpoint: FailPoint
) -> None:
    going, staying = declare("t.going"), declare("t.staying")
    gone = going.enqueue(org="a")
    stays = staying.enqueue(org="b")
    removals = iter([True])
    failpoint("claim.committed", lambda: kinds.forget("t.going") if next(removals, False) else None)
    worker = make_worker()
    worker.start()
    wait_until(lambda: state_of(stays) == "succeeded")
    wait_until(lambda: state_of(gone) == "ready")
    later = staying.enqueue()
    wait_until(lambda: state_of(later) == "succeeded")
    assert (Job.objects.get(id=gone).attempt, state_of(gone)) == (0, "ready")
    assert [row.outcome for row in Attempt.objects.filter(job=gone)] == ["released"]


SETTINGS = """
from tests.settings import *
INSTALLED_APPS = [*INSTALLED_APPS, "broken_app"]
"""
BROKEN = """
from gnl_django import job

@job("broken.early")
def early(payload):
    pass

import a_module_that_does_not_exist
"""


@pytest.mark.row("queue", "C58")
def test_a_module_of_handlers_that_cannot_be_imported_is_named_and_the_others_run(
    declare: Declare, spawn: Spawner, tmp_path: Path
) -> None:
    (tmp_path / "broken_settings.py").write_text(SETTINGS)
    (tmp_path / "broken_app").mkdir()
    (tmp_path / "broken_app" / "__init__.py").touch()
    (tmp_path / "broken_app" / "background.py").write_text(BROKEN)
    unserved = declare("broken.kind").enqueue()
    served = enqueue("tests.quick", 7)
    worker = spawn(
        ["gnl_worker", "--until-idle"],
        env={
            "PYTHONPATH": f"{ROOT}:{tmp_path}",
            "DJANGO_SETTINGS_MODULE": "broken_settings",
        },
    )
    assert worker.wait() == 0, worker.output()
    assert (state_of(served), state_of(unserved)) == ("succeeded", "ready")
    assert Job.objects.get(id=unserved).attempt == 0
    assert "broken_app.background" in worker.output()
    assert "No module named 'a_module_that_does_not_exist'" in worker.output()


def test_the_constraints_are_there_again() -> None:
    job_id = enqueue("tests.quick", 1)
    with pytest.raises(DatabaseError), transaction.atomic():
        Job.objects.filter(id=job_id).update(state="lost")
