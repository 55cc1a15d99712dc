"""How soon a job starts: on an idle worker, after a burst, behind somebody else's backlog."""

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from benchmarks import machine
from benchmarks.bench import Bench
from benchmarks.hits import Hit, HitLog
from benchmarks.peers import GNL, PGQUEUER, RAW, Peer
from benchmarks.plan import BenchError
from benchmarks.stand import Stand
from benchmarks.wire import Wire

START_TIMEOUT = 60.0
CALM = 0.3  # seconds after which nothing of the job before holds a notice back
FULL_SPEED = 0.9  # of the same worker's drain
WINDOW = 1_000  # jobs over which the speed of a burst is taken


def latency(bench: Bench) -> None:
    """From the call of enqueue, and from its return, to the first line of the handler."""
    for peer in bench.peers:
        stand = bench.fresh(peer)
        options = peer.plain if peer.notified else peer.prompt
        with stand.workers(1, *options):
            waits = _spaced(bench, stand, told=peer.notified)
        _keep(bench, peer, "latency", waits)
    if own := bench.peer(GNL):
        stand = bench.fresh(own)
        stand.own("start_worker")
        waits = _spaced(bench, stand, told=True)
        stand.own("stop_worker")
        _keep(bench, own, "latency_inside", waits)


def _keep(bench: Bench, peer: Peer, metric: str, waits: list[tuple[float, float]]) -> None:
    for name, values in zip(("from_call", "after"), zip(*waits, strict=True), strict=True):
        bench.results.add(f"{metric}_{name}_p50", peer.name, statistics.median(values))
        bench.results.add(f"{metric}_{name}_p99", peer.name, percentile(values, 0.99))


def _spaced(bench: Bench, stand: Stand, *, told: bool) -> list[tuple[float, float]]:
    """Return the milliseconds from call and from return of each enqueue to the job's start."""
    sizes = bench.sizes
    count, gap = (sizes.notified, sizes.notified_gap) if told else (sizes.polled, sizes.polled_gap)
    bench.hits.clear()
    stand.call("spaced", count=1, gap=0)
    _wait_for(bench.hits, 1)  # the worker is up
    time.sleep(CALM)
    bench.hits.clear()
    sent = stand.call("spaced", count=count, gap=gap)
    _wait_for(bench.hits, count)
    return _waits(stand, bench.hits.read(), sent)


def _waits(
    stand: Stand, runs: Sequence[Hit], sent: Sequence[tuple[int, int]], first: int = 0
) -> list[tuple[float, float]]:
    """Return the waits of jobs first .. first + len(sent) - 1."""
    starts = {run.number: run.at_ns for run in runs}
    missing = [number for number in range(first, first + len(sent)) if number not in starts]
    if missing:
        raise BenchError(f"{stand.place.name}: {len(missing)} of {len(sent)} jobs did not start")
    return [
        ((starts[first + at] - before) / 1e6, (starts[first + at] - after) / 1e6)
        for at, (before, after) in enumerate(sent)
    ]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` of the values lie."""
    ordered = sorted(values)
    return ordered[int(share * (len(ordered) - 1) + 0.5)]


def _wait_for(hits: HitLog, count: int) -> None:
    end = time.monotonic() + START_TIMEOUT
    while hits.count() < count and time.monotonic() < end:
        time.sleep(0.02)


def idle(bench: Bench) -> None:
    """Statements a second of a worker that has had nothing to do for long; all peers at once."""
    waiting: list[tuple[Peer, Wire | None, int]] = []
    seconds = bench.sizes.idle_seconds
    with ExitStack() as stack:
        for peer in bench.peers:
            if peer.name == RAW:
                continue  # it has no idle behaviour of its own
            stand = bench.stand(peer)
            stand.call("reset")
            wire, place = None, stand.place
            if not peer.broker:
                wire = Wire("127.0.0.1", bench.server.port)
                stack.callback(wire.close)
                place = stand.place.through(bench.server.port, wire.port)
            pids = stack.enter_context(stand.workers(1, *peer.plain, place=place))
            waiting.append((peer, wire, pids[0]))
        time.sleep(bench.sizes.idle_settle)
        before = {peer.name: machine.cpu_seconds([pid]) for peer, _, pid in waiting}
        commands = 0
        for peer, wire, _ in waiting:
            if wire:
                wire.take()
            elif peer.broker:
                commands = bench.redis.commands()
        time.sleep(seconds)
        for peer, wire, pid in waiting:
            if wire:
                statements = wire.take()
                bench.results.idle_statements[peer.name] = statements
                bench.results.add("idle", peer.name, statements.total() / seconds)
            else:
                asked = bench.redis.commands() - commands - 1
                bench.results.add("idle_redis", peer.name, asked / seconds)
            used = machine.cpu_seconds([pid]) - before[peer.name]
            bench.results.add("idle_cpu", peer.name, 100 * used / seconds)


def burst(bench: Bench) -> None:
    """Jobs that come all at once to an idle worker, and how soon it is at full speed.

    The table is tiny and its statistics are of no use: they were taken while every row was ready,
    and ANALYZE of the emptied table keeps them. A plan that trusts them reads finished rows in
    search of ready ones. Full speed is what the same worker drains a filled queue with, in the same
    rounds.
    """
    if not (own := bench.peer(GNL)):
        return
    jobs = bench.sizes.burst
    for _ in range(bench.sizes.repeats):
        stand = bench.stand(own)
        usual = bench.drain(stand, jobs).rate
        stand.call("reset")
        stand.call("load", count=bench.sizes.rows_drain)
        bench.settle(stand.place.name)
        result = bench.drain(stand, jobs, idle_first=True)
        soon = full_speed(bench.hits.read(), result.filled_at, usual * FULL_SPEED)
        bench.results.add("burst_usual", own.name, usual)
        bench.results.add("burst", own.name, result.rate)
        bench.results.add("burst_full", own.name, soon)


def full_speed(runs: Sequence[Hit], since: int, wanted: float) -> float:
    """Return the seconds after `since` at which `wanted` jobs a second were first reached.

    That is the start of the first stretch of a thousand jobs (of a tenth of them, when there are
    fewer) that ran so fast; without one it is infinite.
    """
    window = max(1, min(WINDOW, len(runs) // 10))
    for start, end in zip(runs, runs[window:], strict=False):
        if window / max(1, end.at_ns - start.at_ns) * 1e9 >= wanted:
            return max(0.0, (start.at_ns - since) / 1e9)
    return float("inf")


def flood(bench: Bench) -> None:
    """Jobs of a quiet org while the worker is busy with another org's backlog, and without it.

    pgqueuer knows no orgs: one job behind the same backlog, for comparison.
    """
    if own := bench.peer(GNL):
        stand = bench.fresh(own)
        spaced = {"count": bench.sizes.quiet, "gap": bench.sizes.quiet_gap, "org": "quiet"}
        with stand.workers(1, *own.plain):
            _spaced(bench, stand, told=True)
            time.sleep(CALM)
            bench.hits.clear()
            sent = stand.call("spaced", **spaced)
            _wait_for(bench.hits, len(sent))
            _quiet(bench, own, "flood_alone", _waits(stand, bench.hits.read(), sent))
        sent = _flooded(bench, stand, spaced, lambda count: stand.own("backlog", count=count))
        offset = time.time_ns() - time.monotonic_ns()
        given = [(after + offset) / 1e9 for _, after in sent]
        claims = stand.own("claims_until", org="quiet", given=given)
        bench.results.add("flood_claims", own.name, max(claims))
    if other := bench.peer(PGQUEUER):
        stand = bench.stand(other)
        _flooded(
            bench, stand, {"count": 1, "gap": 0}, lambda count: stand.call("load", count=count)
        )


def _flooded(
    bench: Bench, stand: Stand, spaced: dict[str, object], fill: Callable[[int], object]
) -> list[tuple[int, int]]:
    """Drain a backlog, giving the quiet jobs as soon as it has begun; return their stamps."""
    backlog = bench.sizes.flood
    sent: list[tuple[int, int]] = []

    def watch(_: int, done: int) -> None:
        if done and not sent:
            sent.extend(stand.call("spaced", first=backlog, **spaced))

    jobs = backlog + int(str(spaced["count"]))
    bench.drain(stand, jobs, fill=lambda: fill(backlog), watch=watch)
    runs = bench.hits.read()
    _quiet(bench, stand.peer, "flood_behind", _waits(stand, runs, sent, first=backlog))
    if sent[-1][1] > max(run.at_ns for run in runs if run.number < backlog):
        bench.results.notes.append(
            f"flood: {stand.peer.name}'s backlog ended before the last quiet job came"
        )
    return sent


def _quiet(bench: Bench, peer: Peer, metric: str, waits: list[tuple[float, float]]) -> None:
    """Keep the waits from the call: behind a backlog a job may start before its call returns."""
    from_call = [waited for waited, _ in waits]
    bench.results.add(f"{metric}_p50", peer.name, statistics.median(from_call))
    bench.results.add(f"{metric}_p99", peer.name, percentile(from_call, 0.99))
