"""A second alias and its router: everything works there, and a wrong one is told in words."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection

from gnl_django import enqueue, retry_jobs
from gnl_django.models import Job
from tests.anywhere.conftest import Travel, configured
from tests.conformance.conftest import Declare, MakeWorker, declare, make_worker
from tests.conformance.helpers import fail
from tests.procs import Spawner
from tests.studio.aliases import second_alias
from tests.support import vendor
from tests.test_checks import found

__all__ = ["declare", "make_worker"]

pytestmark = pytest.mark.django_db(transaction=True)

ROUTERS = ["tests.anywhere.routers.JobsApart"]
NAME = "gnl_jobs_apart"


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Make an empty database beside the test's; return the configuration with it as "jobs"."""
    name = NAME
    if vendor() == "sqlite":
        name = str(tmp_path / "jobs.sqlite3")
    else:
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name}")
    yield {"aliases": {"jobs": {"NAME": name}}, "settings": {"DATABASE_ROUTERS": ROUTERS}}
    if vendor() != "sqlite":
        force = " WITH (FORCE)" if vendor() == "postgresql" else ""
        with connection.cursor() as cursor:
            cursor.execute(f"DROP DATABASE {name}{force}")


@pytest.fixture
def migrated(apart: dict[str, Any], spawn: Spawner) -> dict[str, Any]:
    """Make our tables there."""
    migrate = spawn(
        ["migrate", "--database", "jobs", "-v0", "--skip-checks"], env=configured(apart)
    )
    assert migrate.wait() == 0, migrate.output()
    return apart


@pytest.mark.row("queue", "C35")
def test_the_queue_lives_in_a_database_apart_by_the_setting_alone(
    migrated: dict[str, Any], travel: Travel
) -> None:
    # Calls, commands, worker and admin agree on the place without a word.
    settings = {**migrated["settings"], "GNL": {"DATABASE": "jobs"}}
    travel({**migrated, "settings": settings}, stored_in="jobs")
    assert not Job.objects.exists()


@pytest.mark.row("queue", "C35")
@pytest.mark.slow
def test_the_queue_lives_in_a_database_apart_that_each_call_names(
    apart: dict[str, Any], spawn: Spawner, travel: Travel, request: pytest.FixtureRequest
) -> None:
    worker = spawn(["gnl_worker", "--database", "jobs"], env=configured(apart))
    assert worker.wait() == 1
    assert "migrations of gnl_django are not applied on 'jobs'" in worker.output()
    migrated = request.getfixturevalue("migrated")
    travel(migrated, alias="jobs", stored_in="jobs")
    assert not Job.objects.exists()


def test_a_queryset_without_an_alias_is_acted_on_where_the_jobs_are(
    declare: Declare, make_worker: MakeWorker, settings: Any
) -> None:
    dead = declare("t.fails", fail, max_attempts=1).enqueue()
    assert make_worker().run_once() == 1
    settings.DATABASE_ROUTERS = ["tests.anywhere.routers.ReadElsewhere"]
    with second_alias("replica", HOST="nowhere.invalid", NAME="/nowhere/replica.sqlite3"):
        assert Job.objects.all().db == "replica"
        assert retry_jobs(Job.objects.filter(state="dead")).changed == 1
    assert Job.objects.using("default").get(id=dead).state == "ready"


def test_a_queryset_with_an_alias_is_acted_on_there(
    declare: Declare, make_worker: MakeWorker
) -> None:
    declare("t.fails", fail, max_attempts=1).enqueue()
    assert make_worker().run_once() == 1
    with second_alias("other", HOST="nowhere.invalid", NAME="/nowhere/replica.sqlite3"):
        with pytest.raises(Exception, match=r"nowhere|open database|invalid|Can't connect|connect"):
            retry_jobs(Job.objects.using("other").filter(state="dead"))
        assert retry_jobs(Job.objects.using("default").filter(state="dead")).changed == 1


@pytest.mark.row("queue", "C35")
@pytest.mark.parametrize(
    "command", ["gnl_status", "gnl_prune", "gnl_retry 1", "gnl_cancel 1", "gnl_queue list"]
)
def test_a_command_names_the_alias_that_does_not_serve(command: str) -> None:
    name, *arguments = command.split()
    with pytest.raises(CommandError, match="'nowhere'"):
        call_command(name, *arguments, database="nowhere")


def test_a_router_that_keeps_our_tables_out_is_warned_of(settings: Any) -> None:
    settings.GNL = {}
    assert "gnl_django.W004" not in found()
    settings.DATABASE_ROUTERS = ROUTERS
    assert "gnl_django.W004" in found()


def test_a_database_that_never_commits_by_itself_is_an_error(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.GNL = {}
    monkeypatch.setitem(settings.DATABASES["default"], "AUTOCOMMIT", False)
    assert "gnl_django.E006" in found()


def test_wherever_a_router_would_send_it_an_enqueue_goes_where_it_is_told(
    declare: Declare, settings: Any
) -> None:
    settings.DATABASE_ROUTERS = ["tests.anywhere.routers.ReadElsewhere"]
    declare("t.plain")
    with second_alias("replica", HOST="nowhere.invalid", NAME="/nowhere/replica.sqlite3"):
        job_id = enqueue("t.plain")
        assert enqueue("t.plain", key="once") == enqueue("t.plain", key="once") > job_id
    assert Job.objects.using("default").count() == 2
