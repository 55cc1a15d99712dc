"""The long run: work, failures, crashes and kills at random, then quiet, and every checker (T2).

`make chaos` runs it on each database and prints the counts. GNL_CHAOS_SECONDS: how long to disturb
(default 120, at most 600); GNL_CHAOS_SEED: repeats the choices of a run.
"""

import os
import random
import secrets
import signal
from threading import Event
from time import monotonic

import pytest

from gnl_django.core.db import now
from gnl_django.models import Job
from tests.chaos.conftest import OPEN, Run, counted
from tests.checkers import check_all
from tests.history import Recorder
from tests.procs import Proc
from tests.support import vendor, wait_until

SECONDS = min(600.0, float(os.environ.get("GNL_CHAOS_SECONDS", "120")))
SEED = int(os.environ.get("GNL_CHAOS_SEED", "0")) or secrets.randbelow(2**31)
WORKERS, LANES, TTL, MAX_POLL = 4, 20, 2.0, 0.5
KILLS_EVERY = (0.3, 2.0)  # seconds

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("chaos_kinds")]


class Fleet:
    """Four workers; whoever has died is replaced."""

    def __init__(self, worker: Run) -> None:
        self._worker = worker
        self.killed: set[str] = set()
        self.by_us = 0
        #: The database's clock when somebody was last found dead, or all was still well.
        self.last_death = now("default").timestamp()
        self.procs = [self._start() for _ in range(WORKERS)]

    def _start(self) -> Proc:
        return self._worker(ttl=TTL, max_poll=MAX_POLL, concurrency=8, grace=1.0)

    def mend(self) -> None:
        """Replace the dead."""
        for at, proc in enumerate(self.procs):
            if not proc.running:
                assert proc.popen.returncode == -signal.SIGKILL, proc.output()
                self.killed.add(str(proc.pid))
                self.last_death = now("default").timestamp()
                self.procs[at] = self._start()

    def strike(self, dice: random.Random) -> None:
        """Kill one of them."""
        victim = dice.choice(self.procs)
        victim.kill()
        victim.popen.wait(10)
        self.by_us += 1

    def end(self) -> None:
        """End all in order."""
        self.mend()
        for proc in self.procs:
            proc.term()
        for proc in self.procs:
            assert proc.wait(20) == 0, proc.output()


def story() -> str:
    """Return what is still open, with its leases, for a run that does not come to an end."""
    rows = Job.objects.filter(state__in=OPEN).values_list(
        "id", "state", "attempt", "worker", "lease_expires_at", "run_at"
    )
    return "\n".join(map(str, rows[:50]))


def disturb(run: Run, worker: Run, recorder: Recorder, seconds: float) -> Fleet:
    """Let producers give jobs to a fleet for so long, killing a worker now and then."""
    dice, pause = random.Random(SEED), Event()  # noqa: S311 - SEED repeats it
    fleet = Fleet(worker)
    log = str(recorder.client.path)
    producers = [
        run("nemesis_producer", log, f"p{n}", seconds, dice.randrange(2**31), LANES)
        for n in range(2)
    ]
    until = monotonic() + seconds
    strike_at = monotonic() + dice.uniform(*KILLS_EVERY)
    while monotonic() < until or any(producer.running for producer in producers):
        pause.wait(0.05)
        fleet.mend()
        if monotonic() > strike_at and monotonic() < until:
            fleet.strike(dice)
            strike_at = monotonic() + dice.uniform(*KILLS_EVERY)
    for producer in producers:
        assert producer.wait() == 0, producer.output()
    return fleet


def play(run: Run, worker: Run, recorder: Recorder, seconds: float) -> None:
    print(f"seed {SEED}")  # shown when the test fails
    fleet = disturb(run, worker, recorder, seconds)
    given_until = now("default").timestamp()

    def drained() -> bool:
        fleet.mend()  # jobs that kill their worker go on doing it
        return not Job.objects.filter(state__in=OPEN).exists()

    wait_until(drained, 120 + seconds, describe=story)
    fleet.end()
    report = check_all(
        recorder.history(
            faulted=True,
            killed=fleet.killed,
            ttl=TTL,
            # The last kill may have been a job's own; the longest delay of a job is 2 s.
            quiet_at=max(given_until, fleet.last_death),
            bound=TTL + MAX_POLL + 2.0 + 5.0,
        )
    )
    figures = ", ".join(f"{name} {value}" for name, value in report.counts.items())
    counted.append(f"chaos on {vendor()}, {seconds:.0f} s, seed {SEED}: {figures}")
    report.assert_green(f"repeat with GNL_CHAOS_SEED={SEED} GNL_CHAOS_SECONDS={seconds:.0f}\n")
    assert report.counts["jobs"] > 0
    assert fleet.by_us > 0


@pytest.mark.row("queue", "C153")
def test_a_short_storm_of_kills_loses_and_doubles_nothing(
    run: Run, worker: Run, recorder: Recorder
) -> None:
    play(run, worker, recorder, 3.0)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.row("queue", "C153")
def test_a_long_storm_of_kills_loses_and_doubles_nothing(
    run: Run, worker: Run, recorder: Recorder
) -> None:
    play(run, worker, recorder, SECONDS)
