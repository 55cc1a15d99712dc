"""pgqueuer on asyncpg and uvloop, the fastest way its documentation shows.

`python -m benchmarks.sides.pgq BATCH` is its worker: `PgQueuer.run(batch_size=BATCH)`, all else
default. A job leaves its table when it is done, and the log keeps what became of it.
"""

import asyncio
import signal
import sys
from collections.abc import Sequence
from typing import Any

import asyncpg  # type: ignore[import-not-found,unused-ignore]
import uvloop  # type: ignore[import-not-found,unused-ignore]
from pgqueuer import PgQueuer  # type: ignore[import-not-found,unused-ignore]
from pgqueuer.db import AsyncpgDriver  # type: ignore[import-not-found,unused-ignore]
from pgqueuer.models import Job  # type: ignore[import-not-found,unused-ignore]
from pgqueuer.queries import Queries  # type: ignore[import-not-found,unused-ignore]

from benchmarks.hits import hit
from benchmarks.sides.base import Side, address

KIND = "noop"
TABLES = "pgqueuer, pgqueuer_log, pgqueuer_statistics"
# without the triggers: a notice for each of 300,000 rows is not what is measured
SEED = (
    "ALTER TABLE pgqueuer DISABLE TRIGGER USER",
    "INSERT INTO pgqueuer_log (job_id, status, priority, entrypoint)"
    " SELECT g, 'successful', 0, 'noop' FROM generate_series(1, {finished}) g",
    "INSERT INTO pgqueuer (priority, status, entrypoint, payload, execute_after)"
    " SELECT 0, 'queued', 'noop', '-1', now() + interval '1 day'"
    " FROM generate_series(1, {scheduled})",
    "ALTER TABLE pgqueuer ENABLE TRIGGER USER",
)
# what failed is in the log only
UNFINISHED = (
    "SELECT (SELECT count(*) FROM pgqueuer WHERE execute_after <= now())"
    " + (SELECT count(*) FROM pgqueuer_log WHERE status IN ('exception', 'canceled', 'failed'))"
)


async def connect() -> Any:
    """Return a connection to the database under measurement."""
    where = address()
    return await asyncpg.connect(
        host=where["host"],
        port=int(where["port"]),
        user=where["user"],
        database=where["dbname"],
    )


class PgQueue(Side):
    """The peer's producer: its calls are coroutines, run on a loop of its own."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._connection = self._do(connect())
        self._queries = Queries(AsyncpgDriver(self._connection))

    def prepare(self) -> None:
        self._do(self._queries.install())

    def reset(self) -> None:
        self._do(self._connection.execute(f"TRUNCATE {TABLES} RESTART IDENTITY CASCADE"))

    def enqueue(self, number: int) -> None:
        self._do(self._queries.enqueue(KIND, b"%d" % number))

    def enqueue_many(self, numbers: Sequence[int]) -> None:
        payloads: list[bytes | None] = [b"%d" % number for number in numbers]
        kinds, priorities = [KIND] * len(payloads), [0] * len(payloads)
        self._do(self._queries.enqueue(kinds, payloads, priorities))

    def seed(self, finished: int, scheduled: int) -> None:
        for statement in SEED:
            text = statement.format(finished=finished, scheduled=scheduled)
            self._do(self._connection.execute(text))

    def unfinished(self) -> int:
        return int(self._do(self._connection.fetchval(UNFINISHED)))

    def _do(self, call: Any) -> Any:
        return self._loop.run_until_complete(call)


SIDE = PgQueue


async def work(batch: int) -> None:
    """Run the worker until SIGTERM, which `run` does not handle by itself."""
    queue = PgQueuer(AsyncpgDriver(await connect()))

    @queue.entrypoint(KIND)  # type: ignore[untyped-decorator,unused-ignore]
    async def noop(job: Job) -> None:
        hit(int(job.payload or b"0"))

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, queue.shutdown.set)
    await queue.run(batch_size=batch)


if __name__ == "__main__":
    uvloop.run(work(int(sys.argv[1])))
