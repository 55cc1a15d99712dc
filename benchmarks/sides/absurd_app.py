"""absurd-sdk: tasks of five steps on functions inside PostgreSQL.

`python -m benchmarks.sides.absurd_app` is its worker: ten threads, each with a client of its own.
Its own `concurrency=10` lets all ten share one connection, and its coroutines do the same. The
tables are those of `absurdctl init`, which needs psql on PATH: so the schema that it would apply
is taken from the same package.
"""

import os
import signal
import threading
from collections.abc import Sequence

import absurdctl  # type: ignore[import-not-found,unused-ignore]
import psycopg
from absurd_sdk import Absurd, TaskContext  # type: ignore[import-not-found,unused-ignore]

from benchmarks.hits import STEPS, hit
from benchmarks.sides.base import Side

QUEUE = "steps"
SLOTS = 10
SPAWN = (
    f"SELECT count(*) FROM unnest(%s::int[]) i,"
    f" absurd.spawn_task('{QUEUE}', 'five', jsonb_build_object('number', i))"
)
TABLES = ", ".join(f"absurd.{sort}_{QUEUE}" for sort in "trcew")
UNFINISHED = f"SELECT count(*) FROM absurd.t_{QUEUE} WHERE state <> 'completed'"


class OnPostgres(Side):
    """The peer's producer."""

    def __init__(self) -> None:
        self._connection = psycopg.connect(os.environ["BENCH_DSN"], autocommit=True)
        self._client = Absurd(self._connection, queue_name=QUEUE)

    def prepare(self) -> None:
        self._connection.execute(absurdctl.BUNDLED_SCHEMA_SQL)
        self._client.create_queue()

    def reset(self) -> None:
        self._connection.execute(f"TRUNCATE {TABLES}")

    def enqueue(self, number: int) -> None:
        self._client.spawn("five", {"number": number}, queue=QUEUE)

    def enqueue_many(self, numbers: Sequence[int]) -> None:
        self._connection.execute(SPAWN, (list(numbers),))

    def unfinished(self) -> int:
        row = self._connection.execute(UNFINISHED).fetchone()
        return int(row[0]) if row else 0


SIDE = OnPostgres


def client() -> Absurd:
    """Return a client that knows the task, with a connection of its own."""
    app = Absurd(os.environ["BENCH_DSN"], queue_name=QUEUE)

    @app.register_task("five")  # type: ignore[untyped-decorator,unused-ignore]
    def five(params: dict[str, int], ctx: TaskContext) -> None:
        for number in range(params["number"] * STEPS, (params["number"] + 1) * STEPS):
            ctx.step("write", lambda number=number: hit(number))

    return app


def work() -> None:
    """Run tasks until SIGTERM."""
    clients = [client() for _ in range(SLOTS)]
    signal.signal(signal.SIGTERM, lambda *_: [each.stop_worker() for each in clients])
    threads = [
        threading.Thread(target=each.start_worker, kwargs={"worker_id": f"{os.getpid()}-{at}"})
        for at, each in enumerate(clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    work()
