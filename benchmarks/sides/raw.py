"""The floor: psycopg 3 alone on one table, no library, no retry, no lease renewal.

`python -m benchmarks.sides.raw POLL` is its worker: claim ten rows with one statement, run them,
complete the ten with one more. Whatever a queue does beyond that is paid for out of this rate.
"""

import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any

import psycopg

from benchmarks.hits import hit
from benchmarks.sides.base import Side

BATCH = 10
TABLE = """
CREATE TABLE job (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind text NOT NULL,
    payload jsonb NOT NULL,
    state text NOT NULL DEFAULT 'ready',
    priority integer NOT NULL DEFAULT 0,
    attempt integer NOT NULL DEFAULT 0,
    run_at timestamptz NOT NULL DEFAULT now(),
    locked_until timestamptz,
    finished_at timestamptz
);
CREATE INDEX job_ready ON job (priority, run_at, id) WHERE state = 'ready'
"""
INSERT = "INSERT INTO job (kind, payload) VALUES ('noop', jsonb_build_object('i', %s::int))"
INSERT_MANY = (
    "INSERT INTO job (kind, payload)"
    " SELECT 'noop', jsonb_build_object('i', i) FROM unnest(%s::int[]) i"
)
CLAIM = """
UPDATE job SET state = 'running', attempt = attempt + 1, locked_until = now() + interval '30 s'
WHERE id IN (
    SELECT id FROM job WHERE state = 'ready' AND run_at <= now()
    ORDER BY priority, run_at, id FOR UPDATE SKIP LOCKED LIMIT %s
)
RETURNING id, payload
"""
COMPLETE = "UPDATE job SET state = 'done', finished_at = now() WHERE id = ANY(%s)"
SEED_FINISHED = (
    "INSERT INTO job (kind, payload, state, finished_at)"
    """ SELECT 'noop', '{"i": -1}', 'done', now() FROM generate_series(1, %s)"""
)
SEED_SCHEDULED = (
    "INSERT INTO job (kind, payload, run_at)"
    """ SELECT 'noop', '{"i": -1}', now() + interval '1 day' FROM generate_series(1, %s)"""
)
UNFINISHED = "SELECT count(*) FROM job WHERE state <> 'done' AND run_at <= now()"


def connect() -> "psycopg.Connection[tuple[Any, ...]]":
    """Return an autocommit connection to the database under measurement."""
    return psycopg.connect(os.environ["BENCH_DSN"], autocommit=True)


class Raw(Side):
    """The floor's producer."""

    def __init__(self) -> None:
        self.connection = connect()

    def prepare(self) -> None:
        for statement in TABLE.split(";"):
            self.connection.execute(statement)

    def reset(self) -> None:
        self.connection.execute("TRUNCATE job RESTART IDENTITY")

    def enqueue(self, number: int) -> None:
        self.connection.execute(INSERT, (number,), prepare=True)

    def enqueue_many(self, numbers: Sequence[int]) -> None:
        self.connection.execute(INSERT_MANY, (list(numbers),))

    def seed(self, finished: int, scheduled: int) -> None:
        self.connection.execute(SEED_FINISHED, (finished,))
        self.connection.execute(SEED_SCHEDULED, (scheduled,))

    def unfinished(self) -> int:
        row = self.connection.execute(UNFINISHED).fetchone()
        return int(row[0]) if row else 0


SIDE = Raw


def work(poll: float) -> None:
    """Claim and complete until SIGTERM; wait `poll` seconds whenever there is nothing."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with connect() as connection:
        while not stop.is_set():
            rows = connection.execute(CLAIM, (BATCH,)).fetchall()
            if len(rows) > BATCH:  # a plan for an empty table repeats the sub-select for each row
                sys.exit(f"the claim took {len(rows)} rows: this is no measure of a batch of ten")
            for _, payload in rows:
                hit(payload["i"])
            if rows:
                connection.execute(COMPLETE, ([row[0] for row in rows],))
            else:
                stop.wait(poll)


if __name__ == "__main__":
    work(float(sys.argv[1]))
