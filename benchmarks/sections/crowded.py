"""What a full table, an old snapshot and many writers do to the queue. PostgreSQL."""

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import psycopg

from benchmarks.bench import Bench
from benchmarks.drain import Drain, rate
from benchmarks.peers import GNL, PGQUEUER, Peer
from benchmarks.plan import BenchError
from benchmarks.sections.prompt import percentile
from benchmarks.stand import Stand

BURST_TIMEOUT = 600.0  # old rows that cannot be vacuumed may slow a queue very much
AT_EACH_END = 3  # bursts before the transaction, and the last ones under it
#: The tables of C53: a million rows of each sort.
CROWDS = ("one_lane", "many_lanes", "scheduled", "dead")


def rows(bench: Bench) -> None:
    """The same drain with and without rows of the past and of tomorrow in the table."""
    sizes = bench.sizes
    peers = [peer for peer in bench.peers if not peer.broker]
    for peer in peers:
        crowded = bench.stand(peer, "rows")
        crowded.call("seed", finished=sizes.rows_finished, scheduled=sizes.rows_scheduled)
    for turn in range(sizes.rows_repeats):
        for peer in peers:
            jobs = sizes.rows_slow_drain if peer.slow else sizes.rows_drain
            pair = [(bench.stand(peer), False), (bench.stand(peer, "rows"), True)]
            rates = {}
            for stand, keep in pair if turn % 2 == 0 else reversed(pair):
                rates[keep] = bench.drain(stand, jobs, keep=keep).rate
            bench.results.add("rows_without", peer.name, rates[False])
            bench.results.add("rows_with", peer.name, rates[True])
            bench.results.add("rows_ratio", peer.name, rates[True] / rates[False])


def claims(bench: Bench) -> None:
    """A claim's time with a million finished rows and ready jobs in 10,000 lanes."""
    if not (own := bench.peer(GNL)):
        return
    sizes = bench.sizes
    stand = bench.fresh(own, "claims")
    stand.own("fill", finished=sizes.million)
    stand.call("load", count=_enough(bench), orgs=sizes.lanes)
    bench.settle(stand.place.name)
    acts = stand.own("acts", count=sizes.claims)
    bench.results.add("claim_finished_p50", own.name, statistics.median(acts["claim"]))
    bench.results.add("claim_finished_p99", own.name, percentile(acts["claim"], 0.99))
    stand.call("reset")


def _enough(bench: Bench) -> int:
    """Return how many ready jobs the timed claims need."""
    return max(bench.sizes.lanes, bench.sizes.claims * 10) * 2


def big(bench: Bench) -> None:
    """C53: claim, empty promote and empty reap with a million rows of each sort in turn."""
    if not (own := bench.peer(GNL)):
        return
    stand = bench.stand(own, "big")
    for sort in CROWDS:
        stand.call("reset")
        stand.own("fill", **{sort: bench.sizes.million})
        if "lane" not in sort:
            stand.call("load", count=_enough(bench))
        bench.settle(stand.place.name)
        acts = stand.own("acts", count=bench.sizes.claims)
        for act, values in acts.items():
            bench.results.add(f"big_{act}_{sort}", own.name, statistics.median(values))
    stand.call("reset")


def held(bench: Bench) -> None:
    """Bursts drained by one worker, before and at the end of a transaction held open for minutes.

    It has a snapshot and a transaction id, so nothing that the bursts leave behind can be vacuumed.
    """
    for name in (PGQUEUER, GNL):
        if peer := bench.peer(name):
            _held(bench, peer)


def _held(bench: Bench, peer: Peer) -> None:
    sizes = bench.sizes
    stand = bench.fresh(peer, "held")
    with stand.workers(1, *peer.plain):
        before = [_burst(bench, stand) for _ in range(AT_EACH_END + 1)][1:]
        with psycopg.connect(bench.server.dsn(stand.place.name)) as holder:
            holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            holder.execute("SELECT pg_current_xact_id(), count(*) FROM pg_class")
            start = time.monotonic()
            under: list[tuple[float, float]] = []
            while time.monotonic() - start < sizes.held_seconds or len(under) < AT_EACH_END:
                speed = _burst(bench, stand)
                under.append((round(time.monotonic() - start, 2), round(speed, 1)))
            holder.rollback()
        after = _burst(bench, stand)
    last = statistics.median(speed for _, speed in under[-AT_EACH_END:])
    bench.results.add("held_before", peer.name, statistics.median(before))
    bench.results.add("held_end", peer.name, last)
    bench.results.add("held_after", peer.name, after)
    bench.results.add("held_jobs", peer.name, len(under) * sizes.held_burst)
    bench.results.series.setdefault("held", {})[peer.name] = under


def _burst(bench: Bench, stand: Stand) -> float:
    """Give the running worker many jobs at once; return the jobs a second it ran them with."""
    jobs = bench.sizes.held_burst
    bench.hits.clear()
    stand.call("load", count=jobs)
    end = time.monotonic() + BURST_TIMEOUT
    while (count := bench.hits.count()) < jobs and time.monotonic() < end:
        time.sleep(0.02)
    runs = bench.hits.read()
    if count != jobs or len({run.number for run in runs}) != jobs:
        raise BenchError(f"{stand.place.name}: {count} runs of {jobs} jobs")
    return rate(runs)


def crowd(bench: Bench) -> None:
    """Eight processes enqueue one job after another while two workers drain."""
    for name in (PGQUEUER, GNL):
        if peer := bench.peer(name):
            for _ in range(bench.sizes.repeats):
                _crowd(bench, peer)


def _crowd(bench: Bench, peer: Peer) -> None:
    sizes = bench.sizes
    stand = bench.fresh(peer)
    with ExitStack() as stack:
        writers = []
        for _ in range(sizes.enqueuers):
            writer = Stand(peer, stand.place, bench.hits.path, bench.logs)
            stack.callback(writer.close)
            writer.call("unfinished")  # it is up and connected
            writers.append(writer)
        pids = stack.enter_context(stand.workers(2, *peer.plain))
        _warm(bench, stand)

        def write(at: int) -> list[tuple[int, int]]:
            sent: list[tuple[int, int]] = writers[at].call(
                "spaced", count=sizes.crowd, gap=0, first=at * sizes.crowd
            )
            return sent

        with ThreadPoolExecutor(sizes.enqueuers) as pool:
            sent = [stamps for part in pool.map(write, range(sizes.enqueuers)) for stamps in part]
        jobs = sizes.crowd * sizes.enqueuers
        end = time.monotonic() + BURST_TIMEOUT
        while bench.hits.count() < jobs and time.monotonic() < end:
            time.sleep(0.02)
        unfinished = _settled(stand)
    runs = bench.hits.read()
    begun, given = min(before for before, _ in sent), max(after for _, after in sent)
    given_at = {number: after for number, (_, after) in enumerate(sent)}
    waits = [(run.at_ns - given_at[run.number]) / 1e6 for run in runs if run.number in given_at]
    result = Drain(
        place=f"{stand.place.name} (crowd)",
        jobs=jobs,
        processes=len(pids),
        ran=len(runs),
        distinct=len({run.number for run in runs}),
        unfinished=unfinished,
        rate=round(jobs / ((runs[-1].at_ns - begun) / 1e9), 1) if runs else 0.0,
        rss_peak_mib=0.0,
        rss_after_mib=0.0,
        worker_cpu_us=0.0,
        server_cpu_us=0.0,
        foreign_cores=0.0,
    )
    bench.keep(result)
    bench.results.add("crowd_enqueue", peer.name, jobs / ((given - begun) / 1e9))
    bench.results.add("crowd_drain", peer.name, result.rate)
    bench.results.add("crowd_wait_p50", peer.name, statistics.median(waits))
    bench.results.add("crowd_wait_p99", peer.name, percentile(waits, 0.99))
    bench.results.add("crowd_wrong", peer.name, 0.0 if result.correct else 1.0)


def _warm(bench: Bench, stand: Stand) -> None:
    """Wait until a worker runs a first job, and forget it."""
    bench.hits.clear()
    stand.call("spaced", count=1, gap=0)
    end = time.monotonic() + BURST_TIMEOUT
    while not bench.hits.count() and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(1.0)  # the second one is up too
    bench.hits.clear()


def _settled(stand: Stand) -> int:
    end = time.monotonic() + 10.0
    while (unfinished := int(stand.call("unfinished"))) and time.monotonic() < end:
        time.sleep(0.05)
    return unfinished


def prune(bench: Bench) -> None:
    """C120: `gnl_prune` on a million rows that are just old enough, beside some that are not."""
    if not (own := bench.peer(GNL)):
        return
    old, young = bench.sizes.million, bench.sizes.million // 10
    stand = bench.fresh(own, "prune")
    stand.own("fill", old=old, young=young)
    bench.settle(stand.place.name)
    seconds = stand.run("manage.py", "gnl_prune")
    left = int(stand.own("kept"))
    bench.results.add("prune_seconds", own.name, seconds)
    bench.results.add("prune_rate", own.name, old / seconds)
    bench.results.add("prune_wrong", own.name, abs(left - young))
    stand.call("reset")
