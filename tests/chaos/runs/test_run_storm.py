"""The long runs: durable jobs of random steps under random kills, and many kills of one step.

`make chaos` runs them on each database. GNL_CHAOS_SECONDS, GNL_CHAOS_SEED, GNL_CHAOS_ROUNDS: as in
the other fault tests.
"""

import random
import signal
from threading import Event
from time import monotonic

import pytest
from django.db.models import Count

from gnl_django import resolve_step, retry_job
from gnl_django.models import Job, Run, Step
from tests.chaos.conftest import OPEN, counted
from tests.chaos.conftest import Run as Start
from tests.chaos.durable import Part, Plan
from tests.chaos.runs.conftest import LONG, Plans, Settle, vanish
from tests.chaos.runs.test_kills import MODES, ROUNDS, TABLE, WAVE, Scene
from tests.chaos.test_nemesis import KILLS_EVERY, SECONDS, SEED, TTL, Fleet
from tests.checkers import check_all
from tests.run_history import RunRecorder
from tests.support import vendor, wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.chaos,
    pytest.mark.timeout(1800),
]


def drawn(dice: random.Random, m: str) -> Plan:
    """Return a plan of one to six steps that now and then fail or kill."""
    parts = [
        Part(
            name=dice.choice("abc"),
            die=dice.choices(("", "before", "after"), (94, 3, 3))[0],
            fall=dice.choices(("", "before", "after"), (94, 3, 3))[0],
            **MODES[dice.choice(list(MODES))],
        )
        for _ in range(dice.randint(1, 6))
    ]
    return Plan(m=m, parts=parts)


def decide_all(recorder: RunRecorder) -> int:
    """Be the operator: decide each unresolved step by what really happened; return how many."""
    fired = {(r["run"], r["key"]) for r in recorder.history().told("fire")}
    decided = 0
    for row in Job.objects.filter(state="dead"):
        assert row.error_class == "gnl_django.errors.StepUnresolved", row.error
        for step in Step.objects.filter(run__run_id=f"job:{row.id}").exclude(state="done"):
            happened = (f"job:{row.id}", step.key) in fired
            said = {"output": {"key": step.key}} if happened else {"rerun": True}
            assert resolve_step(f"job:{row.id}", step.key, **said)  # type: ignore[arg-type]
            decided += 1
        retry_job(row.id)
    return decided


@pytest.mark.row("runs", "D14", "D88")
def test_a_long_storm_of_kills_records_every_step_once(
    worker: Start, give_plan: Plans, recorder: RunRecorder
) -> None:
    print(f"seed {SEED}")  # shown when the test fails
    dice, pause = random.Random(SEED), Event()  # noqa: S311 - SEED repeats it
    fleet = Fleet(worker)
    seconds = SECONDS / 3
    until, strike_at, number = monotonic() + seconds, 0.0, 0
    while monotonic() < until:
        for _ in range(dice.choice((1, 1, 3))):
            number += 1
            give_plan(drawn(dice, f"plan-{number}"))
        pause.wait(dice.uniform(0.0, 0.15))
        fleet.mend()
        if monotonic() > strike_at:
            fleet.strike(dice)
            strike_at = monotonic() + dice.uniform(*KILLS_EVERY)

    def drained() -> bool:
        fleet.mend()
        return not Job.objects.filter(state__in=OPEN).exists()

    decided = 0
    while True:
        wait_until(drained, 120 + seconds, describe=lambda: list(Job.objects.values("id", "state")))
        if not (just := decide_all(recorder)):
            break
        decided += just
    fleet.end()
    report = check_all(recorder.history(faulted=True, killed=fleet.killed, ttl=TTL))
    states = dict(Run.objects.values_list("state").annotate(Count("id")))
    counted.append(
        f"durable runs on {vendor()}, {seconds:.0f} s, seed {SEED}: {number} jobs, runs {states}, "
        f"{Step.objects.count()} steps, {len(fleet.killed)} kills, {decided} decisions, "
        f"{len(report.violations)} violations"
    )
    assert not report.violations, f"repeat with GNL_CHAOS_SEED={SEED}\n{report}"
    assert set(Job.objects.values_list("state", flat=True)) == {"succeeded"}


@pytest.mark.row("runs", "D29")
def test_an_atomic_step_killed_many_times_at_each_point_has_one_effect(
    worker: Start, give_plan: Plans, settle: Settle, recorder: RunRecorder
) -> None:
    scenes = [Scene(point, "atomic") for point in TABLE if "atomic" in TABLE[point]]
    killed: set[str] = set()
    kills = [(scene, turn) for turn in range(20 * ROUNDS) for scene in scenes]
    for at in range(0, len(kills), WAVE):
        victims = []
        for scene, turn in kills[at : at + WAVE]:
            queue = f"{scene.name}-{turn}"
            give_plan(scene.plan, queue=queue)
            points = scene.failpoints("complete.updated")
            victims.append(worker(queues=queue, failpoints=points, concurrency=1, ttl=LONG))
        for victim in victims:
            assert victim.wait(30) == -signal.SIGKILL, victim.output()
            killed.add(str(victim.pid))
    vanish()
    settle()
    assert set(Job.objects.values_list("state", flat=True)) == {"succeeded"}
    history = recorder.history(faulted=True, killed=killed)
    assert len(history.run_effects) == len(set(history.run_effects)) == len(kills)
    check_all(history).assert_green()
    counted.append(f"durable runs on {vendor()}: {len(kills)} kills of atomic steps, all once")
