"""F11 for durable runs: a holder is frozen inside a step, another takes the run over, it wakes.

Whatever it was about to write is refused, and of two executors never both record (runs.md 4.6).
"""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from gnl_django import get_run, list_steps
from gnl_django.errors import RunBusy, StaleClaim
from gnl_django.models import Job, Step
from tests.chaos import durable
from tests.chaos.conftest import Run as Start
from tests.chaos.durable import Part
from tests.chaos.runs.conftest import LONG, Plans, plan_of, vanish
from tests.chaos.runs.test_kills import MODES, ROUNDS
from tests.checkers import check_all
from tests.run_history import RunRecorder
from tests.support import vendor, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

#: Where the holder freezes, in which mode of step -> (bodies, effects) when all is over.
FREEZES = {
    ("step.begin", "plain"): (2, 2),
    ("step.effect_done", "plain"): (2, 2),
    ("step.begin", "asked"): (1, 1),
    ("step.claimed", "asked"): (1, 1),
    ("step.effect_done", "asked"): (1, 1),
    ("step.begin", "atomic"): (1, 1),
    ("step.effect_done", "atomic"): (2, 1),
}
#: SQLite has one writer: whoever is frozen inside a transaction keeps everybody out.
LOCKED = {"sqlite": {("step.effect_done", "atomic")}}


def freezes() -> list[tuple[str, str]]:
    return [freeze for freeze in FREEZES if freeze not in LOCKED.get(vendor(), set())]


def seen(recorder: RunRecorder, run_id: str) -> tuple[int, int]:
    """Return (bodies, effects) of the target step."""
    history = recorder.history()
    of_run = [r for r in history.effects if r.get("run") == run_id and r.get("key") == "target"]
    effects = history.run_effects.count((run_id, "target"))
    told = [record["e"] for record in of_run]
    return told.count("body"), told.count("fire") + effects


@pytest.mark.row("runs", "D43", "D25", "D35", "D51")
@pytest.mark.row("guarantees", "G3", "G4")
def test_a_worker_that_wakes_inside_a_step_after_its_lease_records_nothing(
    worker: Start, give_plan: Plans, recorder: RunRecorder
) -> None:
    jobs, zombies = {}, {}
    for point, mode in freezes():
        name = f"{point}-{mode}"
        target = Part(name="target", **MODES[mode])
        jobs[point, mode] = give_plan(plan_of(name, target), queue=name)
        # A lease so long that its renewal, which locks the row, is not what is frozen.
        zombies[point, mode] = worker(
            queues=name, failpoints={point: "stop@1"}, concurrency=1, ttl=LONG
        )
    for zombie in zombies.values():
        zombie.wait_stopped()
    vanish()
    queues = ",".join(f"{point}-{mode}" for point, mode in jobs)
    other = worker(queues=queues, ttl=30, max_poll=0.1)
    wait_until(
        lambda: not Job.objects.exclude(state="succeeded").exists(),
        30,
        describe=lambda: (other.output(), *Job.objects.values_list("queue", "state", "error")),
    )
    for zombie in zombies.values():
        zombie.cont()
    for freeze, zombie in zombies.items():
        run_id = f"job:{jobs[freeze]}"
        wait_until(
            lambda zombie=zombie: any(
                record["proc"] == str(zombie.pid) and record["e"] == "end"
                for record in recorder.history().effects
            ),
            20,
            describe=zombie.output,
        )
        zombie.term()
        assert zombie.wait() == 0, zombie.output()
        history = recorder.history()
        mine = [record for record in history.effects if record["proc"] == str(zombie.pid)]
        refused = [record["error"] for record in mine if record["e"] == "refused"]
        # An atomic step looks first, finds the other's record, and writes nothing at all.
        assert refused == ([] if freeze == ("step.begin", "atomic") else ["StaleClaim"]), freeze
        assert {r["why"] for r in mine if r["e"] == "revoked"} <= {"lease-lost"}
        assert seen(recorder, run_id) == FREEZES[freeze], freeze
        (step,) = list_steps(run_id)
        assert step.output["by"] not in {r.get("token") for r in mine}, freeze
    other.term()
    assert other.wait() == 0
    stopped = {str(zombie.pid) for zombie in zombies.values()}
    check_all(recorder.history(faulted=True, stopped=stopped)).assert_green()


@pytest.mark.row("runs", "D39", "D40")
def test_a_process_that_wakes_in_a_run_that_stands_alone_records_nothing(
    run: Start, recorder: RunRecorder
) -> None:
    plan = plan_of("frozen", Part(name="target"), Part(name="last"))
    zombie = run(
        "stand", "frozen", plan.model_dump(), LONG, failpoints={"step.effect_done": "stop@1"}
    )
    zombie.wait_stopped()
    with pytest.raises(RunBusy) as busy:
        durable.stand("frozen", plan)
    assert 0 < busy.value.retry_in <= LONG
    vanish()
    values = durable.stand("frozen", plan)
    zombie.cont()
    assert zombie.wait() == 1
    assert "StaleClaim" in zombie.output()
    found = get_run("frozen")
    assert found is not None
    assert (found.state, found.result, found.entries) == ("completed", values, 2)
    assert seen(recorder, "frozen") == (2, 2)
    stopped = {str(zombie.pid)}
    check_all(recorder.history(faulted=True, stopped=stopped)).assert_green()


class Rendezvous:
    """Lets each of two executors go on only when both stand at the same point."""

    def __init__(self, failpoint: Callable[[str, Callable[[], object]], None], point: str) -> None:
        self.barrier = threading.Barrier(2, timeout=20)
        self.arrived = threading.Event()
        failpoint(point, self.meet)

    def meet(self) -> None:
        self.arrived.set()
        self.barrier.wait()


@pytest.mark.row("runs", "D14", "D31")
@pytest.mark.row("reliability", "13")
@pytest.mark.parametrize("mode", ["plain", "asked", "atomic"])
@pytest.mark.parametrize("turn", range(3 * ROUNDS))
def test_of_two_executors_that_record_at_once_one_is_refused(
    mode: str,
    turn: int,
    recorder: RunRecorder,
    failpoint: Callable[[str, Callable[[], object]], None],
) -> None:
    alone = vendor() == "sqlite" and mode == "atomic"  # one transaction at a time
    meeting = Rendezvous(
        failpoint, "step.begin" if alone or mode == "asked" else "step.effect_done"
    )
    ends: dict[str, Any] = {}

    def execute(name: str) -> None:
        from django.db import connections

        try:
            ends[name] = durable.stand("r", plan_of("r", Part(name="target", **MODES[mode])))
        except Exception as error:  # noqa: BLE001 - looked at below
            ends[name] = error
        finally:
            connections.close_all()

    old = threading.Thread(target=execute, args=["old"])
    old.start()
    assert meeting.arrived.wait(20)
    vanish()
    new = threading.Thread(target=execute, args=["new"])
    new.start()
    for thread in (old, new):
        thread.join(30)
    assert isinstance(ends["old"], StaleClaim), ends
    (value,) = ends["new"]
    assert Step.objects.get().output == value
    assert get_run("r").state == "completed"  # type: ignore[union-attr]
    report = check_all(recorder.history(faulted=True, stopped={"test"}))
    report.assert_green()
