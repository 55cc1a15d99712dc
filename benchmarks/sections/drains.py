"""How fast a filled queue is worked off, by the peers' own workers."""

from benchmarks import machine
from benchmarks.bench import Bench
from benchmarks.peers import GNL, PGQUEUER, Peer, variant

#: Handler, slots and orgs of our sides of the duel, by metric; pgqueuer has the same batch.
DUELS = {
    "duel_sync10": ("plain", "10", False),
    "duel_async10": ("async", "10", False),
    "duel_sync100": ("plain", "100", False),
    "duel_async100": ("async", "100", False),
    "duel_lanes100": ("plain", "100", True),
}


def drain(bench: Bench) -> None:
    """A filled queue, one worker process and then two."""
    sizes = bench.sizes
    for processes, repeats in ((1, sizes.repeats), (2, sizes.two_process_repeats)):
        for peer in bench.turns(repeats):
            jobs = sizes.slow_drain if peer.slow else sizes.drain
            result = bench.drain(bench.stand(peer), jobs, processes=processes)
            bench.results.add(f"drain{processes}", peer.name, result.rate)
            if processes == 1:
                bench.results.add("rss_peak", peer.name, result.rss_peak_mib)
                bench.results.add("worker_cpu", peer.name, result.worker_cpu_us)
                bench.results.add("server_cpu", peer.name, result.server_cpu_us)


def duel(bench: Bench) -> None:
    """Our drain and pgqueuer's one after the other, at 10 and at 100, in rounds.

    pgqueuer's figure at a batch stands beside each of ours at that number of slots.
    """
    own, other = bench.peer(GNL), bench.peer(PGQUEUER)
    for turn in range(bench.sizes.repeats):
        for batch in ("10", "100"):
            metrics = [metric for metric, (_, slots, _) in DUELS.items() if slots == batch]
            fighters: list[tuple[Peer, list[str], bool]] = []
            if other:
                fighters.append((variant(other, batch=batch), metrics, False))
            if own:
                for metric in metrics:
                    handler, slots, lanes = DUELS[metric]
                    fighters.append((variant(own, handler=handler, slots=slots), [metric], lanes))
            first = turn % max(1, len(fighters))
            for peer, named, lanes in fighters[first:] + fighters[:first]:
                _fight(bench, peer, named, lanes=lanes)


def _fight(bench: Bench, peer: Peer, metrics: list[str], *, lanes: bool) -> None:
    stand = bench.stand(peer, metrics[0].partition("_")[2])
    orgs = bench.sizes.orgs if lanes else 0
    result = bench.drain(stand, bench.sizes.duel, orgs=orgs)
    for metric in metrics:
        bench.results.add(metric, peer.name, result.rate)


def lanes(bench: Bench) -> None:
    """The drain spread over very many orgs, and over one in the same rounds."""
    if own := bench.peer(GNL):
        sizes = bench.sizes
        for turn in range(sizes.repeats):
            for orgs in (0, sizes.lanes) if turn % 2 == 0 else (sizes.lanes, 0):
                result = bench.drain(bench.stand(own), sizes.lanes_drain, orgs=orgs)
                metric = "lanes_many" if orgs else "lanes_one"
                bench.results.add(metric, own.name, result.rate)


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
    quarter = next((now for done, now in seen if done >= jobs // 4), result.rss_after_mib)
    bench.results.add("flat_peak", own.name, result.rss_peak_mib)
    bench.results.add("flat_growth", own.name, result.rss_after_mib - quarter)
    bench.results.notes.append(
        "memory of the worker, MiB after jobs: "
        + ", ".join(f"{now:.0f} after {done:,}" for done, now in seen[:: max(1, len(seen) // 8)])
    )
