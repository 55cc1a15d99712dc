"""The measurements, one function each; docs/benchmarks.md tells what each one means.

`python -m benchmarks` calls them by name. They only take samples: what is reached is decided in
benchmarks.targets.
"""

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack

from benchmarks import machine
from benchmarks.bench import Bench
from benchmarks.hits import HitLog
from benchmarks.peers import GNL, RAW, Peer
from benchmarks.plan import BenchError
from benchmarks.stand import Place
from benchmarks.wire import Wire

PICKUP_TIMEOUT = 30.0


def single(bench: Bench) -> None:
    """One enqueue after another, each committed."""
    for peer in bench.turns(bench.sizes.repeats):
        stand = bench.stand(peer)
        stand.call("reset")
        bench.settle(stand.place.name)
        count = bench.sizes.slow_single if peer.slow else bench.sizes.single
        bench.results.add("single", peer.name, count / stand.call("single", count=count))


def bulk(bench: Bench) -> None:
    """One call that enqueues many."""
    count = bench.sizes.bulk
    for peer in bench.turns(bench.sizes.repeats):
        if not peer.bulk:
            continue
        stand = bench.stand(peer)
        stand.call("reset")
        bench.settle(stand.place.name)
        bench.results.add("bulk", peer.name, stand.call("bulk", count=count))
        if peer.name == GNL:
            stand.call("reset")
            bench.settle(stand.place.name)
            seconds = stand.call("keyed", count=count, orgs=bench.sizes.lanes)
            bench.results.add("bulk_keyed", peer.name, seconds)


def drain(bench: Bench) -> None:
    """A filled queue, one worker process and then two."""
    for processes in (1, 2):
        for peer in bench.turns(bench.sizes.repeats):
            jobs = bench.sizes.slow_drain if peer.slow else bench.sizes.drain
            result = bench.drain(bench.stand(peer), jobs, processes=processes)
            bench.results.add(f"drain{processes}", peer.name, result.rate)
            if processes == 1:
                bench.results.add("rss_peak", peer.name, result.rss_peak_mib)
                bench.results.add("rss_after", peer.name, result.rss_after_mib)
                bench.results.add("worker_cpu", peer.name, result.worker_cpu_us)
                bench.results.add("server_cpu", peer.name, result.server_cpu_us)


def pickup(bench: Bench) -> None:
    """From the call of enqueue to the first line of the handler, on an idle worker."""
    for peer in bench.peers:
        stand = bench.stand(peer)
        stand.call("reset")
        bench.settle(stand.place.name)
        with stand.workers(1, *peer.same_poll):
            _measure_pickup(bench, peer, "pickup")
    if own := bench.peer(GNL):
        stand = bench.stand(own)
        stand.call("reset")
        stand.call("start_worker")
        _measure_pickup(bench, own, "pickup_inside")
        stand.call("stop_worker")


def _measure_pickup(bench: Bench, peer: Peer, metric: str) -> None:
    stand = bench.stand(peer)
    bench.hits.clear()
    stand.call("spaced", count=1, gap=0)
    _wait_for(bench.hits, 1)  # the worker is up
    bench.hits.clear()
    sent = stand.call("spaced", count=bench.sizes.pickups, gap=bench.sizes.pickup_gap)
    _wait_for(bench.hits, len(sent))
    waits = sorted((run.at_ns - sent[run.number]) / 1e6 for run in bench.hits.read())
    if len(waits) != len(sent):
        raise BenchError(f"{stand.place.name}: {len(waits)} of {len(sent)} jobs were picked up")
    bench.results.add(f"{metric}_p50", peer.name, statistics.median(waits))
    bench.results.add(f"{metric}_p99", peer.name, waits[int(0.99 * (len(waits) - 1) + 0.5)])


def _wait_for(hits: HitLog, count: int) -> None:
    end = time.monotonic() + PICKUP_TIMEOUT
    while hits.count() < count and time.monotonic() < end:
        time.sleep(0.02)


def idle(bench: Bench) -> None:
    """Statements a second of a worker that has had nothing to do for long; all peers at once."""
    waiting: list[tuple[Peer, Wire, int]] = []
    with ExitStack() as stack:
        for peer in bench.peers:
            if peer.name == RAW:
                continue  # it has no idle behaviour of its own
            stand = bench.stand(peer)
            stand.call("reset")
            wire = Wire("127.0.0.1", bench.server.port)
            stack.callback(wire.close)
            place = Place(
                stand.place.name,
                _through(stand.place.url, bench.server.port, wire.port),
                _through(stand.place.dsn, bench.server.port, wire.port),
            )
            pids = stack.enter_context(stand.workers(1, *peer.plain, place=place))
            waiting.append((peer, wire, pids[0]))
        time.sleep(bench.sizes.idle_settle)
        before = {peer.name: machine.cpu_seconds([pid]) for peer, _, pid in waiting}
        for _, wire, _ in waiting:
            wire.take()
        time.sleep(bench.sizes.idle_seconds)
        for peer, wire, pid in waiting:
            statements = wire.take()
            bench.results.idle_statements[peer.name] = statements
            seconds = bench.sizes.idle_seconds
            bench.results.add("idle", peer.name, statements.total() / seconds)
            used = machine.cpu_seconds([pid]) - before[peer.name]
            bench.results.add("idle_cpu", peer.name, 100 * used / seconds)


def _through(address: str, port: int, other: int) -> str:
    """Return a URL or libpq text with the server's port replaced by the proxy's."""
    return address.replace(f":{port}/", f":{other}/").replace(f"port={port} ", f"port={other} ")


def rows(bench: Bench) -> None:
    """The same drain with and without rows of the past and of tomorrow in the table."""
    sizes = bench.sizes
    for peer in bench.peers:
        crowded = bench.stand(peer, "rows")
        crowded.call("seed", finished=sizes.rows_finished, scheduled=sizes.rows_scheduled)
    for turn in range(sizes.rows_repeats):
        for peer in bench.turns(1):
            if peer.slow and turn >= sizes.repeats:
                continue
            jobs = sizes.rows_slow_drain if peer.slow else sizes.rows_drain
            pair = [(bench.stand(peer), False), (bench.stand(peer, "rows"), True)]
            rates = {}
            for stand, keep in pair if turn % 2 == 0 else reversed(pair):
                rates[keep] = bench.drain(stand, jobs, keep=keep).rate
            bench.results.add("rows_without", peer.name, rates[False])
            bench.results.add("rows_with", peer.name, rates[True])
            bench.results.add("rows_ratio", peer.name, rates[True] / rates[False])


def burst(bench: Bench) -> None:
    """Jobs that come all at once to an idle worker, with statistics that are of no use.

    They were taken while every row was ready, and ANALYZE of the emptied table keeps them: a plan
    that trusts them reads finished rows in search of ready ones. Not for the floor: planned for an
    empty table, its claim runs the sub-select once a row and takes the whole queue.
    """
    if own := bench.peer(GNL):
        stand = bench.stand(own)
        for _ in range(bench.sizes.repeats):
            stand.call("reset")
            stand.call("load", count=bench.sizes.rows_drain)
            bench.settle(stand.place.name)
            result = bench.drain(stand, bench.sizes.burst, idle_first=True)
            bench.results.add("burst", own.name, result.rate)


def lanes(bench: Bench) -> None:
    """The drain spread over many orgs: what fairness costs."""
    if own := bench.peer(GNL):
        for _ in range(bench.sizes.repeats):
            stand = bench.stand(own)
            result = bench.drain(stand, bench.sizes.drain, orgs=bench.sizes.lanes)
            bench.results.add("lanes", own.name, result.rate)


def rss(bench: Bench) -> None:
    """Memory of one worker over many jobs: at a quarter of them and at the end."""
    if not (own := bench.peer(GNL)):
        return
    jobs = bench.sizes.flat
    seen: list[tuple[int, float]] = []

    def watch(pid: int, done: int) -> None:
        if done and (not seen or done - seen[-1][0] >= jobs // 40):
            seen.append((done, machine.memory(pid).now))

    result = bench.drain(bench.stand(own), jobs, watch=watch)
    quarter = next(now for done, now in seen if done >= jobs // 4)
    bench.results.add("flat_peak", own.name, result.rss_peak_mib)
    bench.results.add("flat_growth", own.name, result.rss_after_mib - quarter)
    bench.results.notes.append(
        "memory of the worker, MiB after jobs: "
        + ", ".join(f"{now:.0f} after {done:,}" for done, now in seen[:: max(1, len(seen) // 8)])
    )


SECTIONS: dict[str, Callable[[Bench], None]] = {
    "single": single,
    "bulk": bulk,
    "drain": drain,
    "pickup": pickup,
    "idle": idle,
    "rows": rows,
    "burst": burst,
    "lanes": lanes,
    "rss": rss,
}
