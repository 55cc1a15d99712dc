"""An agent of three turns is killed at every point of every step, and comes to the same end.

Its tools are a side effect that can be asked about and an atomic note; its model is deterministic
(runs.md 4.4, D76).
"""

import signal
from collections import Counter
from typing import Any

import pytest

from gnl_django import list_steps
from gnl_django.models import Job
from tests.chaos.conftest import Run
from tests.chaos.durable import Ask
from tests.chaos.runs.conftest import LONG, Plans, Settle, vanish
from tests.chaos.runs.test_kills import WAVE
from tests.checkers import check_all
from tests.run_history import RunRecorder

pytestmark = pytest.mark.django_db(transaction=True)

STEPS = ["model", "tool:charge", "model#2", "tool:note", "model#3"]
TEXT = "done: charged 10, noted 11"
#: Every point that the five steps pass, with its number.
KILLS = [
    *((point, nth) for point in ("step.begin", "step.effect_done") for nth in range(1, 6)),
    *((point, nth) for point in ("step.journaled", "step.committed") for nth in range(1, 6)),
    ("step.claimed", 1),
]


def asked_again(point: str, nth: int) -> bool:
    """Tell whether the kill loses an answer of the model that had come already."""
    return point in {"step.effect_done", "step.journaled"} and STEPS[nth - 1].startswith("model")


@pytest.mark.row("runs", "D75", "D76", "D79")
@pytest.mark.row("guarantees", "G4")
def test_an_agent_killed_anywhere_charges_once_and_says_the_same_in_the_end(
    worker: Run, give_plan: Plans, settle: Settle, recorder: RunRecorder
) -> None:
    jobs: dict[tuple[str, int], int] = {}
    killed: set[str] = set()
    for at in range(0, len(KILLS), WAVE):
        victims: list[Any] = []
        for point, nth in KILLS[at : at + WAVE]:
            queue = f"{point}-{nth}"
            jobs[point, nth] = give_plan(Ask(m=queue), kind="chaos.agent", queue=queue)
            points = {point: f"kill@{nth}"}
            victims.append(worker(queues=queue, failpoints=points, concurrency=1, ttl=LONG))
        for victim in victims:
            assert victim.wait(30) == -signal.SIGKILL, victim.output()
            killed.add(str(victim.pid))
    vanish()
    settle()
    history = recorder.history(faulted=True, killed=killed)
    fires = Counter((r["run"], r["key"].partition("#")[0]) for r in history.told("fire"))
    for (point, nth), job_id in jobs.items():
        run_id, place = f"job:{job_id}", (point, nth)
        row = Job.objects.get(id=job_id)
        assert row.state == "succeeded", (place, row.error)
        assert (row.result["text"], row.result["turns"]) == (TEXT, 3), place
        assert [step.key for step in list_steps(run_id)] == STEPS, place
        assert fires[run_id, "tool:charge"] == 1, place
        assert history.run_effects.count((run_id, "tool:note")) == 1, place
        assert fires[run_id, "model"] == 3 + asked_again(point, nth), place
    check_all(history).assert_green()
