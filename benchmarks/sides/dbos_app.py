"""DBOS: workflows of five steps, given to a queue without a limit and worked off by ten threads.

`python -m benchmarks.sides.dbos_app SECONDS` is its worker, which looks for work every SECONDS. The
executor's size is what keeps ten at a time: a limit of the queue is filled up once a poll only.
"""

import signal
import sys
import threading
from collections.abc import Sequence

import sqlalchemy as sa  # type: ignore[import-not-found,unused-ignore]
from dbos import DBOS, DBOSClient, DBOSConfig  # type: ignore[import-not-found,unused-ignore]

from benchmarks.hits import STEPS, hit
from benchmarks.sides.base import Side, address

QUEUE = "steps"
SLOTS = 10
UNFINISHED = "SELECT count(*) FROM dbos.workflow_status WHERE status <> 'SUCCESS'"


@DBOS.step()  # type: ignore[untyped-decorator,unused-ignore]
def write(number: int) -> None:
    """Leave the counted line."""
    hit(number)


@DBOS.workflow(name="five")  # type: ignore[untyped-decorator,unused-ignore]
def five(number: int) -> None:
    """Leave five counted lines, a step each."""
    for at in range(STEPS):
        write(number * STEPS + at)


def url() -> str:
    """Return the address of the database under measurement."""
    where = address()
    return f"postgresql://{where['user']}@{where['host']}:{where['port']}/{where['dbname']}"


def launch() -> None:
    """Connect as an application; it makes its tables where there are none."""
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": url(),
        "application_version": "1",
        "max_executor_threads": SLOTS,
        "log_level": "WARNING",
    }
    DBOS(config=config)
    DBOS.launch()


class Dbos(Side):
    """The peer's producer."""

    def prepare(self) -> None:
        launch()  # registers its version too, without which a worker starts nothing
        DBOS.destroy()
        self._client = DBOSClient(system_database_url=url(), application_name="bench")
        # psycopg 3, which DBOS itself connects with
        self._engine = sa.create_engine(url().replace("postgresql:", "postgresql+psycopg:"))

    def reset(self) -> None:
        with self._engine.begin() as connection:
            connection.execute(sa.text("TRUNCATE dbos.workflow_status CASCADE"))

    def enqueue(self, number: int) -> None:
        self._client.enqueue({"queue_name": QUEUE, "workflow_name": "five"}, number)

    def enqueue_many(self, numbers: Sequence[int]) -> None:
        options = {"queue_name": QUEUE, "workflow_name": "five"}
        with self._engine.begin() as connection:
            for number in numbers:
                self._client.enqueue_in_transaction(connection, options, number)

    def unfinished(self) -> int:
        with self._engine.connect() as connection:
            return int(connection.execute(sa.text(UNFINISHED)).scalar_one())


SIDE = Dbos


def work(every: float) -> None:
    """Run workflows until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    launch()
    DBOS.register_queue(QUEUE, polling_interval_sec=every)
    stop.wait()
    DBOS.destroy()


if __name__ == "__main__":
    work(float(sys.argv[1]))
