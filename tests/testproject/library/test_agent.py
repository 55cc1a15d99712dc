"""The library's agent: what it answers, and that a killed worker's conversation goes on."""

import signal
from datetime import UTC, datetime

import pytest

from gnl_django import get_run, list_steps
from gnl_django.models import Job
from testproject.library import agent
from testproject.library.background import Question, ask
from testproject.library.models import Document
from tests.procs import Spawner

PACKAGES = 25


def index(packages: int = PACKAGES) -> None:
    """Store two files of each package; the one numbered 7 defines the most classes."""
    Document.objects.bulk_create(
        Document(
            path=f"{number:02}/{file}.py",
            package=f"package-{number:02}",
            lines=1,
            functions=0,
            classes=40 if number == 7 else number,
        )
        for number in range(packages)
        for file in range(2)
    )


ANSWER = "package-07, with 80 classes in 2 files"


@pytest.mark.django_db
def test_the_agent_counts_every_package_and_names_the_largest() -> None:
    index()
    assert ask.run_once(Question()) == {"text": ANSWER, "turns": 4}
    assert agent.search("-2") == [f"package-{number}" for number in range(20, 25)]


@pytest.mark.django_db
def test_without_documents_there_is_nothing_to_say() -> None:
    assert ask.run_once(Question()) == {"text": "There are no packages.", "turns": 2}


@pytest.mark.row("runs", "D53", "D75")
@pytest.mark.django_db(transaction=True)
def test_a_worker_killed_half_way_leaves_a_conversation_that_another_one_ends(
    spawn: Spawner,
) -> None:
    index()
    job_id = ask.enqueue(Question())
    victim = spawn(["gnl_worker", "--until-idle"], failpoints={"step.committed": "kill@15"})
    assert victim.wait(60) == -signal.SIGKILL, victim.output()
    before = list_steps(f"job:{job_id}")
    assert [step.key for step in before[:4]] == ["model", "tool:search", "model#2", "tool:count"]
    assert len(before) == 15
    assert Job.objects.get().state == "running"
    # Nobody waits 30 s for the lease of the killed one.
    Job.objects.update(lease_expires_at=datetime(2020, 1, 1, tzinfo=UTC))

    heir = spawn(["gnl_worker", "--until-idle"])
    assert heir.wait(60) == 0, heir.output()
    row = Job.objects.get()
    assert (row.state, row.attempt) == ("succeeded", 2)
    assert row.result == {"text": ANSWER, "turns": 4}
    after = list_steps(f"job:{job_id}")
    # What was recorded stays as it is; the rest is the heir's: nothing was asked or called twice.
    assert after[:15] == before
    assert [step.attempt for step in after] == [1] * 15 + [2] * (len(after) - 15)
    models = [step for step in after if step.key.startswith("model")]
    assert (len(models), len(after)) == (4, 4 + 1 + PACKAGES)
    found = get_run(f"job:{job_id}")
    assert found is not None
    assert (found.state, found.entries) == ("completed", 2)
