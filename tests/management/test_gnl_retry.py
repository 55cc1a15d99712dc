"""`gnl_retry` and `gnl_cancel`: what became of the jobs, exit 1 when nothing did, and the log."""

import logging
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from gnl_django import cancel_job
from gnl_django.models import Job
from tests.conformance.conftest import Declare, MakeWorker
from tests.conformance.helpers import fail, job_of, running, state_of

pytestmark = pytest.mark.django_db(transaction=True)


def run(*arguments: object) -> str:
    """Run a command; return what it printed."""
    out = StringIO()
    call_command(*map(str, arguments), stdout=out)
    return out.getvalue().strip()


@pytest.fixture
def dead(declare: Declare, make_worker: MakeWorker) -> list[Job]:
    """Dead jobs: two kinds, two queues, two orgs and an ownerless one, all but one failed alike."""

    def otherwise(payload: Any) -> None:
        raise LookupError("other")

    first = declare("t.first", fail, max_attempts=1)
    for org in (None, "a", "b"):
        first.enqueue(org=org)
    first.enqueue(org="a", queue="slow")
    declare("t.other", otherwise, max_attempts=1).enqueue(org="a")
    make_worker(("default", "slow")).run_until_idle()
    return list(Job.objects.filter(state="dead").order_by("id"))


def ready() -> list[int]:
    """Return the ids of ready jobs."""
    return list(Job.objects.filter(state="ready").order_by("id").values_list("id", flat=True))


def test_jobs_are_retried_by_id(dead: list[Job]) -> None:
    assert run("gnl_retry", dead[0].id, dead[2].id, 2**62) == (
        "2 of 3 jobs made ready, 1 left as it was"
    )
    assert ready() == [dead[0].id, dead[2].id]


def test_jobs_that_failed_alike_are_retried_by_their_key(dead: list[Job]) -> None:
    key = dead[0].error_key
    assert run("gnl_retry", "--error", key) == "4 of 4 jobs made ready"
    assert ready() == [job.id for job in dead[:4]]


@pytest.mark.parametrize(
    ("filters", "places"),
    [
        (["--org", "a"], [1, 3]),
        (["--org", ""], [0]),
        (["--queue", "slow"], [3]),
        (["--kind", "t.first", "--queue", "default", "--org", "b"], [2]),
    ],
)
def test_the_key_goes_with_filters(dead: list[Job], filters: list[str], places: list[int]) -> None:
    run("gnl_retry", "--error", dead[0].error_key, *filters)
    assert ready() == [dead[at].id for at in places]


def test_nothing_changed_is_exit_code_1(dead: list[Job], capsys: Any) -> None:
    run("gnl_retry", dead[0].id)
    for arguments in (
        [dead[0].id],
        ["--error", "0" * 16],
        ["--error", dead[1].error_key, "--org", "z"],
    ):
        with pytest.raises(CommandError, match=r"Nothing changed\.") as refused:
            call_command("gnl_retry", *map(str, arguments))
        assert refused.value.returncode == 1
    assert "0 of 1 job made ready, 1 left as it was" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["1", "--error", "k"],
        ["1", "--org", "a"],
        ["x"],
        ["-5"],
        ["0"],
        ["9" * 30],
        ["--kind", "a"],
    ],
)
def test_unclear_arguments_are_refused(arguments: list[str]) -> None:
    with pytest.raises(CommandError):
        call_command("gnl_retry", *arguments)


def test_jobs_are_canceled_with_a_reason(declare: Declare, make_worker: MakeWorker) -> None:
    kind = declare("t.plain")
    waiting, held, done, canceled = kind.enqueue_many(range(4))
    cancel_job(canceled)
    running(held)
    make_worker(concurrency=1)
    Job.objects.filter(id=done).update(state="succeeded", finished_at=job_of(done).enqueued_at)
    assert run("gnl_cancel", waiting, held, done, canceled, waiting, "--reason", "no use") == (
        "2 of 4 jobs canceled or asked to stop, 2 left as they were"
    )
    assert [state_of(job) for job in (waiting, held)] == ["canceled", "running"]
    assert [job_of(job).cancel_reason for job in (waiting, held)] == ["no use"] * 2
    with pytest.raises(CommandError, match=r"Nothing changed\."):
        run("gnl_cancel", waiting, done)
    with pytest.raises(CommandError):
        run("gnl_cancel")


def test_every_act_leaves_a_line_in_the_audit_log(
    dead: list[Job], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "ada")
    ids = [job.id for job in dead]
    with caplog.at_level(logging.INFO, "gnl_django.audit"):
        run("gnl_retry", ids[0])
        run("gnl_retry", "--error", dead[0].error_key, "--org", "a")
        run("gnl_cancel", ids[0])
        with pytest.raises(CommandError):
            run("gnl_cancel", *range(2**40, 2**40 + 25))
    first, second, third, fourth = [record.getMessage() for record in caplog.records]
    assert first == (f"retry by 'ada' at the command line: 1 of 1 job made ready; ids {ids[0]}")
    assert f"error '{dead[0].error_key}', filters {{'org': 'a'}}" in second
    assert second.endswith(f"ids {ids[1]}, {ids[3]}")
    assert third.startswith("cancel by 'ada'")
    assert "0 of 25 jobs canceled or asked to stop, 25 left as they were" in fourth
    assert fourth.endswith(" and 5 more")
