"""Celery on Redis with its defaults, results ignored.

`python -m benchmarks.sides.celery_app` is its worker: prefork, a process for each core, a message
acknowledged before its task runs, so that a crash loses what was prefetched.
"""

import os
from collections.abc import Sequence
from typing import Any

import django
from django.apps import apps

if not apps.ready:
    django.setup()

import redis  # type: ignore[import-not-found,unused-ignore]
from celery import Celery, group  # type: ignore[import-not-found,unused-ignore]

from benchmarks.hits import hit
from benchmarks.sides.base import Side

URL = os.environ["BENCH_REDIS"]
QUEUE = "celery"
PIECE = 10_000

app = Celery("bench", broker=URL)
app.conf.update(task_ignore_result=True, broker_connection_retry_on_startup=True)


@app.task(name="bench.noop")  # type: ignore[untyped-decorator,unused-ignore]
def noop(number: int) -> None:
    """Leave the counted line, nothing else."""
    hit(number)


class OnRedis(Side):
    """The peer's producer."""

    def __init__(self) -> None:
        self._redis = redis.Redis.from_url(URL)
        self._messages: list[Any] = []

    def prepare(self) -> None:
        self._redis.ping()

    def reset(self) -> None:
        self._redis.flushdb()

    def enqueue(self, number: int) -> None:
        noop.delay(number)

    def enqueue_many(self, numbers: Sequence[int]) -> None:
        group(noop.s(number) for number in numbers).apply_async()

    def load(self, numbers: Sequence[int], orgs: int = 0) -> None:
        # sent once and put back each time: twenty thousand single sends would take half a minute
        if len(self._messages) != len(numbers):
            for number in numbers:
                noop.delay(number)
            self._messages = self._redis.lrange(QUEUE, 0, -1)
            return
        for at in range(0, len(self._messages), PIECE):
            self._redis.rpush(QUEUE, *self._messages[at : at + PIECE])

    def unfinished(self) -> int:
        return int(self._redis.llen(QUEUE)) + int(self._redis.hlen("unacked"))


SIDE = OnRedis


if __name__ == "__main__":
    # run as a module this file is __main__; the app with the task is the imported one
    from benchmarks.sides.celery_app import app as named

    name = f"bench-{os.getpid()}@%h"
    named.worker_main(["worker", "--loglevel", "WARNING", "--hostname", name])
