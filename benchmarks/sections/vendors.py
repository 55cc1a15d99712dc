"""Our drain on the other two databases, beside that on PostgreSQL in the same rounds."""

from contextlib import ExitStack

from benchmarks.bench import Bench
from benchmarks.drain import Ground, drain
from benchmarks.peers import GNL, Peer
from benchmarks.stand import Place, Stand
from testproject.servers import PrivateMariaDB, mariadb_missing


def vendors(bench: Bench) -> None:
    """Drain on a private MariaDB (when it is installed) and on an SQLite file, both durable."""
    if not (own := bench.peer(GNL)):
        return
    with ExitStack() as stack:
        places: dict[str, tuple[Place, int | None]] = {}
        if missing := mariadb_missing():
            bench.results.notes.append(f"LEFT OUT: {missing}")
        else:
            server = stack.enter_context(PrivateMariaDB(durable=True))
            server.create("bench")
            places["mariadb"] = (Place("bench-gnl-mariadb", server.url("bench")), server.pid)
        file = bench.scratch / "bench.sqlite3"
        places["sqlite"] = (Place("bench-gnl-sqlite", f"sqlite:///{file}"), None)
        stands = {
            vendor: (_open(stack, bench, own, place), pid)
            for vendor, (place, pid) in places.items()
        }
        for _ in range(bench.sizes.repeats):
            usual = bench.drain(bench.stand(own), bench.sizes.vendor_drain).rate
            bench.results.add("postgresql", own.name, usual)
            for vendor, (stand, pid) in stands.items():
                ground = Ground(bench.hits, pid, settle=lambda _: None)
                result = bench.keep(drain(stand, ground, bench.sizes.vendor_drain))
                bench.results.add(vendor, own.name, result.rate)
                bench.results.add(f"{vendor}_ratio", own.name, result.rate / usual)


def _open(stack: ExitStack, bench: Bench, peer: Peer, place: Place) -> Stand:
    stand = Stand(peer, place, bench.hits.path, bench.logs)
    stack.callback(stand.close)
    stand.call("prepare")
    return stand
