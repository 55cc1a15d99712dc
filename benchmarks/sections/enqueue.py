"""How fast jobs are given: one by one, and many in a call."""

from benchmarks.bench import Bench
from benchmarks.peers import GNL

ENOUGH = 8.0  # seconds: a bulk call that takes longer is not repeated


def single(bench: Bench) -> None:
    """One enqueue after another, each committed."""
    for peer in bench.turns(bench.sizes.repeats):
        stand = bench.fresh(peer)
        count = bench.sizes.slow_single if peer.slow else bench.sizes.single
        bench.results.add("single", peer.name, count / stand.call("single", count=count))


def bulk(bench: Bench) -> None:
    """One call that enqueues many; for us also with keys and orgs, beside the bare INSERT."""
    count, orgs = bench.sizes.bulk, bench.sizes.orgs
    for peer in bench.turns(bench.sizes.repeats):
        if not peer.bulk or (bench.results.median("bulk", peer.name) or 0) > ENOUGH:
            continue
        seconds = bench.fresh(peer).call("bulk", count=count)
        bench.results.add("bulk", peer.name, seconds)
        if peer.name == GNL:
            keyed = bench.fresh(peer).call("keyed", count=count, orgs=orgs)
            bench.results.add("bulk_keyed", peer.name, keyed)
            bare = bench.fresh(peer).own("bare", count=count, orgs=orgs)
            for metric, value in zip(("bulk_bare", "bulk_statement"), bare, strict=True):
                bench.results.add(metric, peer.name, value)
