"""F1 for durable runs: SIGKILL at each point of a step, in each mode (runs.md 4.6).

What must come out of each is the crash table itself, written down as `TABLE`. All victims of a test
die side by side, each in a queue or a run of its own; then one honest process finishes everything.
"""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from gnl_django import get_run, list_steps, resolve_step, retry_job
from gnl_django.errors import RunBusy, StepInFlight, StepUnresolved
from gnl_django.models import Job
from tests.chaos import durable
from tests.chaos.conftest import Run
from tests.chaos.durable import Part, Plan
from tests.chaos.runs.conftest import LONG, Plans, Settle, vanish
from tests.checkers import check_all
from tests.procs import Proc
from tests.run_history import RunRecorder
from tests.support import wait_until

ROUNDS = int(os.environ.get("GNL_CHAOS_ROUNDS", "1"))
WAVE = 6  # victims at once

pytestmark = pytest.mark.django_db(transaction=True)

#: Modes of the step at which the process dies; `asked` has a recover function, `blind` has none.
MODES: dict[str, dict[str, Any]] = {
    "plain": {"mode": "plain"},
    "asked": {"mode": "side_effect", "recover": True},
    "blind": {"mode": "side_effect"},
    "atomic": {"mode": "atomic"},
}
#: (bodies begun, effects) in the end, or "?" before them when somebody has to decide first.
ONCE, UNDONE, TWICE, TRIED, NEVER = (1, 1, ""), (0, 0, "?"), (2, 2, ""), (2, 1, ""), (1, 0, "?")
UNKNOWN = (1, 1, "?")
LATE = {"plain": TWICE, "asked": ONCE, "blind": UNKNOWN, "atomic": TRIED}
TABLE: dict[str, dict[str, tuple[int, int, str]]] = {
    "step.begin": dict.fromkeys(MODES, ONCE),
    "step.claimed": {"asked": ONCE, "blind": UNDONE},
    "before": {"plain": TRIED, "asked": TRIED, "blind": NEVER, "atomic": TRIED},
    "after": LATE,
    "step.effect_done": LATE,
    "step.journaled": LATE,
    "step.committed": dict.fromkeys(MODES, ONCE),
    "final": dict.fromkeys(MODES, ONCE),
}
#: Every fail point of runs.
POINTS = {
    "step.begin", "step.claimed", "step.effect_done", "step.journaled", "step.committed",
    "run.final",
}  # fmt: skip


@dataclass(frozen=True)
class Scene:
    """A process that dies at a point of one step, which stands between two others."""

    point: str
    mode: str

    @property
    def name(self) -> str:
        """Its queue, its run, and the mark of its plan."""
        return f"{self.point}-{self.mode}"

    @property
    def plan(self) -> Plan:
        """What it does."""
        die = self.point if self.point in {"before", "after"} else ""
        target = Part(name="target", die=die, **MODES[self.mode])
        return Plan(m=self.name, parts=[Part(name="first"), target, Part(name="last")])

    def failpoints(self, final: str) -> dict[str, str]:
        """Where it dies: the first step passes each point once before."""
        if self.point == "final":
            return {final: "kill@1"}
        nth = 1 if self.point == "step.claimed" else 2
        return {self.point: f"kill@{nth}"} if self.point in POINTS else {}

    @property
    def expected(self) -> tuple[int, int, str]:
        """What the crash table says."""
        return TABLE[self.point][self.mode]


SCENES = [Scene(point, mode) for point, modes in TABLE.items() for mode in modes]


def in_waves(scenes: Iterable[Scene], start: Callable[[Scene], Proc]) -> set[str]:
    """Start the victims, a few at a time; return the pids when all have died."""
    pids = set()
    for wave in waves(list(scenes)):
        victims = [(scene, start(scene)) for scene in wave]
        for scene, victim in victims:
            assert victim.wait(30) == -signal.SIGKILL, f"{scene.name}: {victim.output()}"
            pids.add(str(victim.pid))
    return pids


def waves(scenes: list[Scene]) -> Iterator[list[Scene]]:
    for at in range(0, len(scenes), WAVE):
        yield scenes[at : at + WAVE]


def counts(recorder: RunRecorder, run_ids: dict[str, str]) -> dict[str, tuple[int, int]]:
    """Return (bodies, effects) of the target step by scene."""
    history = recorder.history()
    bodies = Counter(r["run"] for r in history.told("body") if r["key"] == "target")
    fires = Counter(r["run"] for r in history.told("fire") if r["key"] == "target")
    fires.update(run for run, step in history.run_effects if step == "target")
    return {name: (bodies[run], fires[run]) for name, run in run_ids.items()}


def decide(scene: Scene, run_id: str) -> None:
    """Be the operator who knows what became of a side effect."""
    effects = scene.expected[1]
    said: dict[str, Any] = {"output": {"key": "target"}} if effects else {"rerun": True}
    assert resolve_step(run_id, "target", **said), scene.name


def assert_table(found: dict[str, tuple[int, int]], scenes: list[Scene]) -> None:
    assert found == {scene.name: scene.expected[:2] for scene in scenes}


@pytest.mark.row("runs", "D14", "D18", "D20", "D26", "D29", "D53", "D84")
@pytest.mark.row("queue", "C117")
@pytest.mark.row("guarantees", "G4")
def test_a_worker_killed_at_any_point_of_a_step_leaves_what_the_crash_table_says(
    worker: Run, give_plan: Plans, settle: Settle, recorder: RunRecorder
) -> None:
    jobs = {scene.name: give_plan(scene.plan, queue=scene.name) for scene in SCENES}
    runs = {name: f"job:{job}" for name, job in jobs.items()}

    def start(scene: Scene) -> Proc:
        points = scene.failpoints("complete.updated")
        return worker(queues=scene.name, failpoints=points, concurrency=1, ttl=LONG)

    killed = in_waves(SCENES, start)
    vanish()
    settle()
    assert_table(counts(recorder, runs), SCENES)
    states = dict(Job.objects.values_list("id", "state"))
    for scene in SCENES:
        job = jobs[scene.name]
        if scene.expected[2]:
            assert states[job] == "dead", scene.name
            assert Job.objects.get(id=job).error_class == "gnl_django.errors.StepUnresolved"
            decide(scene, runs[scene.name])
            assert retry_job(job) == job
        else:
            assert states[job] == "succeeded", scene.name
    settle()
    assert set(Job.objects.values_list("state", flat=True)) == {"succeeded"}
    for run_id in runs.values():
        assert [step.key for step in list_steps(run_id)] == ["first", "target", "last"]
    check_all(recorder.history(faulted=True, killed=killed)).assert_green()


def enter(scene: Scene) -> Any:
    """Enter a run that stands alone until nothing is in its way; return what stops it for good."""

    def tried() -> Any:
        try:
            return durable.stand(scene.name, scene.plan)
        except (RunBusy, StepInFlight):
            return None
        except StepUnresolved as error:
            return error

    return wait_until(tried, 20, describe=scene.name)


@pytest.mark.row("runs", "D20", "D26", "D40", "D55", "D56")
@pytest.mark.row("guarantees", "G4")
def test_a_run_that_stands_alone_survives_the_same_kills(run: Run, recorder: RunRecorder) -> None:
    runs = {scene.name: scene.name for scene in SCENES}

    def start(scene: Scene) -> Proc:
        points = scene.failpoints("run.final")
        return run("stand", scene.name, scene.plan.model_dump(), LONG, failpoints=points)

    killed = in_waves(SCENES, start)
    vanish()
    ends = {scene.name: enter(scene) for scene in SCENES}
    assert_table(counts(recorder, runs), SCENES)
    for scene in SCENES:
        if scene.expected[2]:
            assert isinstance(ends[scene.name], StepUnresolved), scene.name
            assert get_run(scene.name).state == "failed"  # type: ignore[union-attr]
            decide(scene, scene.name)
            ends[scene.name] = enter(scene)
        found = get_run(scene.name)
        assert found is not None
        assert (found.state, found.result) == ("completed", ends[scene.name]), scene.name
        assert [value["key"] for value in found.result] == ["first", "target", "last"]
    check_all(recorder.history(faulted=True, killed=killed)).assert_green()
