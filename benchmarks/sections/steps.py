"""Jobs of five durable steps: how fast, and what one asks of the database."""

import re
from collections import Counter

from benchmarks.bench import Bench
from benchmarks.drain import wait_for_outcomes
from benchmarks.hits import STEPS
from benchmarks.peers import GNL, RAW, Peer, variant
from benchmarks.plan import BenchError
from benchmarks.stand import Stand
from benchmarks.wire import Wire

_WRITE = re.compile(r"(INSERT INTO|UPDATE|DELETE FROM) gnl_django_step\b")
_READ = re.compile(r"FROM gnl_django_(step|run)\b")


def steps(bench: Bench) -> None:
    """Drain jobs of five plain steps in turns, then count the statements of some of them."""
    peers = [*filter(None, map(_with_steps, bench.peers)), *bench.journals]
    jobs = bench.sizes.steps
    for peer in bench.turns(bench.sizes.repeats, peers):
        result = bench.drain(bench.stand(peer, "steps"), jobs, effects=STEPS)
        bench.results.add("steps", peer.name, result.rate)
        bench.results.add("steps_jobs", peer.name, result.rate / STEPS)
        bench.results.add("steps_worker_cpu", peer.name, result.worker_cpu_us)
        bench.results.add("steps_server_cpu", peer.name, result.server_cpu_us)
    for peer in peers:
        _count(bench, bench.stand(peer, "steps"))


def _with_steps(peer: Peer) -> Peer | None:
    """Return the peer with the handler of five steps; None when it has no such thing."""
    if peer.name == RAW:
        return variant(peer, side="raw_steps")
    return variant(peer, handler="steps") if peer.name == GNL else None


def _count(bench: Bench, stand: Stand) -> None:
    """Count the statements of a worker between here and the server while it does some jobs."""
    jobs = bench.sizes.steps_counted
    stand.call("reset")
    stand.call("load", count=jobs)
    wire = Wire("127.0.0.1", bench.server.port)
    try:
        place = stand.place.through(bench.server.port, wire.port)
        with stand.workers(1, *stand.peer.plain, place=place):
            left = wait_for_outcomes(stand, 60.0)
            statements = wire.take()
    finally:
        wire.close()
    if left:
        raise BenchError(f"{stand.place.name}: {left} of {jobs} counted jobs were not done")
    name = stand.peer.name
    bench.results.add("steps_statements", name, statements.total() / jobs)
    if name == GNL:
        writes = {text for text in statements if _WRITE.search(text)}
        reads = {text for text in statements if _READ.search(text)} - writes
        bench.results.add("steps_writes", name, _times(statements, writes) / jobs / STEPS)
        bench.results.add("steps_reads", name, _times(statements, reads) / jobs)


def _times(statements: Counter[str], texts: set[str]) -> int:
    return sum(statements[text] for text in texts)
