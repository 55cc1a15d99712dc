"""Drain a filled queue and judge it: how fast, at what cost, and whether each job ran exactly once.

The sections call `drain`; a drain that is not correct is a failure of the whole run, however fast.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from benchmarks import machine
from benchmarks.hits import Hit, HitLog
from benchmarks.stand import Stand

STALL = 30.0  # seconds without one more job: the drain is given up
SETTLE = 10.0  # seconds that outcomes may take to be stored after the last job ran
LOOK = 0.05
IDLE_FIRST = 2.5  # seconds: the worker is up, and has found nothing a few times

Watch = Callable[[int, int], None]


@dataclass(frozen=True)
class Drain:
    """What one drain gave."""

    place: str
    jobs: int
    processes: int
    ran: int
    distinct: int
    unfinished: int
    rate: float
    rss_peak_mib: float
    rss_after_mib: float
    worker_cpu_us: float
    server_cpu_us: float
    foreign_cores: float
    #: stamp of the moment at which a burst was there
    filled_at: int = 0
    #: effects of each job; then `ran`, `rate` and the CPU are those of the effects
    effects: int = 1

    @property
    def correct(self) -> bool:
        """Return whether every effect of every job happened exactly once and no job is left."""
        return self.ran == self.distinct == self.jobs * self.effects and self.unfinished == 0

    def plain(self) -> dict[str, object]:
        """Return the fields for JSON."""
        return {**asdict(self), "correct": self.correct}


@dataclass(frozen=True)
class Ground:
    """What every drain of a run stands on."""

    hits: HitLog
    server_pid: int | None
    settle: Callable[[str], None]


def drain(
    stand: Stand,
    ground: Ground,
    jobs: int,
    *,
    processes: int = 1,
    orgs: int = 0,
    keep: bool = False,
    idle_first: bool = False,
    fill: Callable[[], object] | None = None,
    watch: Watch | None = None,
    effects: int = 1,
) -> Drain:
    """Fill the stand's queue with `jobs`, run workers until all have run, and check the result.

    keep: leave the rows that are there. idle_first: the worker is started on the empty queue and
    the jobs then come all at once, with no ANALYZE in between, as a burst does in production.
    fill: fills the queue instead; `watch` may add the rest of the `jobs`. watch(pid, jobs done) is
    called about twenty times a second with the first worker's process id. effects: lines that each
    job leaves.
    """
    if not keep:
        stand.call("reset")
    filled_at = 0
    if not idle_first:
        if fill:
            fill()
        else:
            stand.call("load", count=jobs, orgs=orgs)
    ground.settle(stand.place.name)
    ground.hits.clear()
    with stand.workers(processes, *stand.peer.plain) as pids:
        if idle_first:
            time.sleep(IDLE_FIRST)
            filled_at = stand.call("load", count=jobs, orgs=orgs)
        cost = _run(ground, jobs * effects, pids, watch)
        unfinished = wait_for_outcomes(stand, SETTLE if cost.complete else 0)
        memories = [machine.memory(pid) for pid in pids]
    runs = ground.hits.read()
    return Drain(
        place=stand.place.name,
        jobs=jobs,
        processes=processes,
        ran=len(runs),
        distinct=len({run.number for run in runs}),
        unfinished=unfinished,
        rate=round(rate(runs), 1),
        rss_peak_mib=max(memory.peak for memory in memories),
        rss_after_mib=max(memory.now for memory in memories),
        worker_cpu_us=round(cost.worker_us, 1),
        server_cpu_us=round(cost.server_us, 1),
        foreign_cores=round(cost.foreign_cores, 2),
        filled_at=filled_at,
        effects=effects,
    )


def rate(runs: list[Hit]) -> float:
    """Return jobs a second from the first to the last side effect."""
    if len(runs) < 2:
        return 0.0
    return (len(runs) - 1) / ((runs[-1].at_ns - runs[0].at_ns) / 1e9)


@dataclass(frozen=True)
class _Cost:
    """CPU per job of workers and server, the cores that others used, and whether all jobs ran."""

    worker_us: float
    server_us: float
    foreign_cores: float
    complete: bool


class _Meter:
    """CPU from the first job seen to the last: the start of the processes is not a job's cost."""

    def __init__(self, ground: Ground, pids: list[int], done: int) -> None:
        self._server = [ground.server_pid] if ground.server_pid else []
        self._workers = pids
        self._done = done
        self._start = time.monotonic()
        self._foreign = machine.Foreign(ground.server_pid)
        self._before = machine.cpu_seconds(pids), machine.cpu_seconds(self._server)

    def read(self, done: int, *, complete: bool) -> _Cost:
        jobs = max(1, done - self._done)
        elapsed = max(LOOK, time.monotonic() - self._start)
        worker, server = machine.cpu_seconds(self._workers), machine.cpu_seconds(self._server)
        return _Cost(
            worker_us=(worker - self._before[0]) * 1e6 / jobs,
            server_us=(server - self._before[1]) * 1e6 / jobs,
            foreign_cores=self._foreign.seconds() / elapsed,
            complete=complete,
        )


def _run(ground: Ground, jobs: int, pids: list[int], watch: Watch | None) -> _Cost:
    """Return the cost once all jobs have run, a worker has ended, or nothing happens any more."""
    meter = _Meter(ground, pids, 0)
    done, changed = 0, time.monotonic()
    while done < jobs and time.monotonic() - changed < STALL and all(map(machine.alive, pids)):
        if (count := ground.hits.count()) != done:
            if done == 0:
                meter = _Meter(ground, pids, count)
            done, changed = count, time.monotonic()
        if watch:
            watch(pids[0], count)
        time.sleep(LOOK)
    return meter.read(done, complete=done >= jobs)


def wait_for_outcomes(stand: Stand, seconds: float) -> int:
    """Return how many jobs are still unfinished once outcomes had `seconds` to be stored."""
    end = time.monotonic() + seconds
    while (unfinished := int(stand.call("unfinished"))) and time.monotonic() < end:
        time.sleep(LOOK)
    return unfinished
