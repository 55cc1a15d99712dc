"""F2, F3, F25: handlers that die or behave badly, and signals at any moment."""

import os
import random
import signal
from collections.abc import Callable
from threading import Event
from time import monotonic

import pytest

from gnl_django.models import Attempt, Job
from tests.chaos.conftest import OPEN, Give, Run
from tests.checkers import check_all
from tests.history import Recorder
from tests.support import wait_until

ROUNDS = int(os.environ.get("GNL_CHAOS_ROUNDS", "1"))
SEED = int(os.environ.get("GNL_CHAOS_SEED", "1"))
HOSTILE = (
    "SystemExit", "KeyboardInterrupt", "GeneratorExit", "MemoryError", "CancelledError",
    "StopIteration", "recursion", "fork", "close", "break", "transaction", "signals",
)  # fmt: skip

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.row("queue", "C100", "C107")
def test_hostile_handlers_cost_an_attempt_and_harm_nobody_else(
    worker: Run, give_job: Give, recorder: Recorder
) -> None:
    for do in HOSTILE:
        give_job(do, do)
        give_job(f"after-{do}")
    steady = worker(ttl=10, concurrency=2)
    wait_until(lambda: not Job.objects.filter(state__in=OPEN), 60, describe=steady.output)
    steady.term()
    assert steady.wait() == 0, steady.output()
    assert set(Job.objects.values_list("state", flat=True)) == {"succeeded"}
    assert set(Attempt.objects.values_list("outcome", flat=True)) == {"failed"}
    report = check_all(recorder.history(faulted=True, ttl=10))
    report.assert_green()


@pytest.mark.row("queue", "C73")
@pytest.mark.row("guarantees", "G2")
def test_a_poison_job_ends_dead_and_the_others_are_unaffected(
    worker: Run, give_job: Give, recorder: Recorder
) -> None:
    poison = give_job("poison", "die", always=True, max_attempts=3)
    gone = give_job("gone", "exit", org="b")  # once only
    for number in range(6):
        give_job(f"other-{number}", org=f"org-{number}")
    killed = set()
    deadline = monotonic() + 60
    while Job.objects.filter(state__in=OPEN).exists():
        assert monotonic() < deadline
        victim = worker(until_idle=True)
        code = victim.wait()
        assert code in {0, 7, -signal.SIGKILL}, victim.output()
        if code:
            killed.add(str(victim.pid))
    dead = Job.objects.get(id=poison)
    assert (dead.state, dead.attempt) == ("dead", 3)
    assert list(Attempt.objects.filter(job=poison).values_list("number", "outcome")) == [
        (1, "lease_lost"),
        (2, "lease_lost"),
        (3, "lease_lost"),
    ]
    assert Job.objects.get(id=gone).state == "succeeded"
    check_all(recorder.history(faulted=True, killed=killed, ttl=0.5)).assert_green()


def test_a_worker_killed_inside_its_handlers_leaves_them_to_others(
    worker: Run, give_job: Give, recorder: Recorder, finish: Callable[..., None]
) -> None:
    killed = set()
    for turn in range(3 * ROUNDS):
        give_job(f"short-{turn}")
        give_job(f"long-{turn}", "wait", seconds=30.0)
        victim = worker()
        wait_until(
            lambda turn=turn: any(
                record["m"] == f"long-{turn}" for record in recorder.history().told("start")
            ),
            40,
            describe=victim.output,
        )
        victim.kill()
        assert victim.wait() == -signal.SIGKILL
        killed.add(str(victim.pid))
        wait_until(lambda: not Job.objects.exclude(state="running").filter(state__in=OPEN))
        finish()
    check_all(recorder.history(faulted=True, killed=killed, ttl=0.5)).assert_green()


@pytest.mark.row("queue", "C139")
def test_a_signal_at_a_random_moment_ends_a_worker_in_order(
    worker: Run, give_job: Give, recorder: Recorder, finish: Callable[..., None]
) -> None:
    dice, moment = random.Random(SEED), Event()  # noqa: S311 - SEED repeats it
    for turn in range(8 * ROUNDS):
        for number in range(4):
            give_job(f"{turn}-{number}", "wait", seconds=dice.uniform(0.0, 0.05))
        ending = worker(grace=2.0, ttl=10)
        ending.wait_line("serves")
        moment.wait(dice.uniform(0.0, 0.12))
        (ending.term if turn % 2 else ending.interrupt)()
        assert ending.wait() == 0, f"seed {SEED}: {ending.output()}"
        assert not Job.objects.filter(state="running"), f"seed {SEED}: {ending.output()}"
    finish()
    check_all(recorder.history(faulted=True, ttl=10)).assert_green()
    assert not Attempt.objects.filter(outcome="lease_lost").exists()


@pytest.mark.row("queue", "C138")
def test_a_handler_longer_than_the_grace_is_released_and_a_second_signal_ends_at_once(
    worker: Run, give_job: Give, recorder: Recorder, finish: Callable[..., None]
) -> None:
    give_job("deaf", "ignore", seconds=90.0)
    first = worker(grace=0.2, ttl=5)
    wait_until(lambda: recorder.history().told("start"), 40, describe=first.output)
    first.term()
    assert first.wait() == 0
    assert Job.objects.get().state == "ready"
    assert Job.objects.get().attempt == 0
    second = worker(grace=30.0, ttl=1)
    wait_until(lambda: len(recorder.history().told("start")) == 2, 40, describe=second.output)
    # Two that come at the same time may be seen as one: another follows until it has ended.
    wait_until(lambda: not second.running or second.term(), 25)
    assert second.wait() == 0
    assert Job.objects.get().state == "running"
    finish()
    killed = {str(first.pid), str(second.pid)}
    check_all(recorder.history(faulted=True, killed=killed, ttl=5)).assert_green()
