"""The floor of durable steps: a prepared INSERT for each step, in autocommit, and nothing else.

`python -m benchmarks.sides.raw_steps POLL` is its worker: ten threads, each with a connection, that
claims and completes ten rows at a time as `benchmarks.sides.raw` does. No right is checked, nothing
is replayed.
"""

import signal
import sys
import threading

from benchmarks.hits import STEPS, hit
from benchmarks.sides import raw

SLOTS = 10
TABLE = """
CREATE TABLE step (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run bigint NOT NULL,
    key text NOT NULL,
    output text NOT NULL,
    finished_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (run, key)
)
"""
RECORD = "INSERT INTO step (run, key, output) VALUES (%s, %s, 'null')"


class RawSteps(raw.Raw):
    """The floor's producer."""

    def prepare(self) -> None:
        super().prepare()
        self.connection.execute(TABLE)

    def reset(self) -> None:
        super().reset()
        self.connection.execute("TRUNCATE step RESTART IDENTITY")


SIDE = RawSteps


def work(poll: float, stop: threading.Event) -> None:
    """Claim, do the steps and complete until `stop`; wait `poll` seconds when there is nothing."""
    with raw.connect() as connection:
        while not stop.is_set():
            rows = connection.execute(raw.CLAIM, (raw.BATCH,)).fetchall()
            for pk, payload in rows:
                for at in range(STEPS):
                    hit(payload["i"] * STEPS + at)
                    connection.execute(RECORD, (pk, f"write-{at}"), prepare=True)
            if rows:
                connection.execute(raw.COMPLETE, ([row[0] for row in rows],))
            else:
                stop.wait(poll)


def main(poll: float) -> None:
    """Run ten threads until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    threads = [threading.Thread(target=work, args=(poll, stop)) for _ in range(SLOTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(float(sys.argv[1]))
