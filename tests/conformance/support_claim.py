"""Helpers of the tests about claims, leases and workers.

Rendezvous with deadlines, threads with connections of their own, tables filled by one statement,
and the ring of lanes in plain Python, to which the stores are compared.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from itertools import chain
from threading import Event
from typing import Any

from django.db import connection, connections

from gnl_django import NewJob, Worker, enqueue_many
from gnl_django.core import clock, leases
from gnl_django.core.db import now
from gnl_django.queue.models import Job
from gnl_django.queue.rings import Rings, Taken
from gnl_django.queue.store import store_for
from gnl_django.queue.store.base import Claimed, ClaimedRow, ClaimRequest, Outcome, Store
from tests.support import vendor

DEADLINE = 30.0  # seconds; far more than a rendezvous ever takes
KIND = "claim.work"
LONG = 3_600.0  # a ttl that no test outlives


class Gate:
    """A place where a thread stops until the test lets it go on; put it on a fail point.

    With `first_only` whoever comes later passes.
    """

    def __init__(self, *, first_only: bool = False) -> None:
        self._first_only = first_only
        self._reached = Event()
        self._opened = Event()

    def __call__(self) -> None:
        if self._first_only and self._reached.is_set():
            return
        self._reached.set()
        assert self._opened.wait(DEADLINE), "nobody has opened the gate"

    def wait_reached(self) -> None:
        """Wait until a thread stands here."""
        assert self._reached.wait(DEADLINE), "nobody has come to the gate"

    def open(self) -> None:
        """Let whoever stands here go on, now and later."""
        self._opened.set()


Go = Callable[..., "Future[Any]"]


@contextmanager
def threads() -> Iterator[Go]:
    """Run functions in threads of their own: `future = go(work, argument)`.

    Each thread's connections are closed when its work is done; all have ended at the exit.
    """

    def run(work: Callable[..., Any], *args: Any) -> Any:
        try:
            return work(*args)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(32) as pool:
        yield lambda work, *args: pool.submit(run, work, *args)


@contextmanager
def employed(*args: Any, **options: Any) -> Iterator[Worker]:
    """Make a Worker and let its threads end at the exit, whatever happened."""
    worker = Worker(*args, **options)
    try:
        yield worker
    finally:
        worker.stop(DEADLINE)


@contextmanager
def short_ttl(least: float = 0.001) -> Iterator[None]:
    """Allow a Worker a ttl below the smallest of a real one."""
    before, leases.MIN_TTL = leases.MIN_TTL, least
    try:
        yield
    finally:
        leases.MIN_TTL = before


@contextmanager
def later(seconds: float) -> Iterator[clock.Override]:
    """Let the statements of this process see the database's clock `seconds` ahead, standing."""
    with clock.override(now("default") + timedelta(seconds=seconds)) as moved:
        yield moved


# claims without a worker


def store() -> Store:
    """Return the store of this run's database."""
    return store_for("default")


def rings(
    *kinds: str, ttl: float = LONG, worker: str = "test", attempts: int | None = None
) -> Rings:
    """Return the cursors of a new worker of `kinds`."""
    names = tuple(sorted(kinds or (KIND,)))
    return Rings(lambda: names, ttl=ttl, worker=worker, max_attempts=attempts)


def request(n: int = 10, **changes: Any) -> ClaimRequest:
    """Return a claim for `n` jobs from the ring's first lane on."""
    values: dict[str, Any] = {
        "queue": "default",
        "kinds": (KIND,),
        "n": n,
        "cursor": "",
        "at_cursor": True,
        "paused": (),
        "token": leases.new_token(),
        "ttl": LONG,
        "worker": "test",
        "max_attempts": None,
        **changes,
    }
    return ClaimRequest(**values)


def claim_one(**changes: Any) -> tuple[ClaimedRow, str]:
    """Claim the next job; return its row and the claim token."""
    asked = request(1, **changes)
    taken: Claimed = store().claim(asked)
    (row,) = taken.rows
    return row, asked.token


def ids(taken: Taken) -> list[int]:
    """Return the ids of what a pass took, in start order."""
    return [row.id for row in taken.claimed.rows]


def lanes(taken: Taken) -> list[str]:
    """Return the orgs of what a pass took, in start order."""
    return [row.org for row in taken.claimed.rows]


def succeed(row: ClaimedRow, token: str) -> Outcome:
    """Return the outcome of a success."""
    return Outcome(row.id, token, "succeeded")


def fail(row: ClaimedRow, token: str, **changes: Any) -> Outcome:
    """Return the outcome of a failed attempt that is tried again after an hour."""
    values: dict[str, Any] = {
        "delay": 3_600.0,
        "recorded": "failed",
        "error_class": "builtins.ValueError",
        "error": "ValueError: no",
        "error_key": "0123456789abcdef",
        "traceback": "Traceback",
        **changes,
    }
    return Outcome(row.id, token, values.pop("state", "scheduled"), **values)


# rows


def add(orgs: Sequence[str | None], *, kind: str = KIND, **options: Any) -> list[int]:
    """Enqueue one job for each org, in this order."""
    return enqueue_many([NewJob(kind, None, org=org or None, **options) for org in orgs])


def flat(parts: Iterable[Iterable[int]]) -> list[int]:
    """Return the numbers of all parts, sorted."""
    return sorted(chain.from_iterable(parts))


def states() -> dict[int, str]:
    """Return the state of every job."""
    return dict(Job.objects.order_by("id").values_list("id", "state"))


_CONCAT = {
    "postgresql": "'lane-' || ({0})",
    "sqlite": "'lane-' || ({0})",
    "mysql": "CONCAT('lane-', {0})",
}
_AHEAD = {
    "postgresql": "clock_timestamp() + ({0}) * interval '1 second'",
    "sqlite": "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', ({0}) || ' seconds') || '000'",
    "mysql": "UTC_TIMESTAMP(6) + INTERVAL ({0}) SECOND",
}


def fill(
    count: int,
    state: str = "ready",
    *,
    lane: str = "0",
    ahead: str = "-n",
    kind: str = KIND,
    queue: str = "default",
) -> None:
    """Insert `count` jobs by one statement.

    lane: SQL arithmetic over n (0 .. count-1) that numbers the lane: org is `lane-<number>`.
    ahead: likewise, seconds from now until run_at and, for running jobs, the end of the lease.
    """
    now_ = _AHEAD[connection.vendor].format("0")
    time = _AHEAD[connection.vendor].format(ahead.replace("%", "%%"))
    values: Mapping[str, str] = {
        "kind": "%s",
        "queue": "%s",
        "org": _CONCAT[connection.vendor].format(lane.replace("%", "%%")),
        "state": "%s",
        "run_at": time,
        "attempt": "1" if state == "running" else "0",
        "claim_token": "'0123456789abcdef0123456789abcdef'" if state == "running" else "NULL",
        "lease_expires_at": time if state == "running" else "NULL",
        "finished_at": time if state in {"succeeded", "dead", "canceled"} else "NULL",
        "enqueued_at": now_,
        "started_at": now_ if state == "running" else "NULL",
        "worker": "'w/h/1/abcdef'" if state == "running" else "NULL",
        "payload": "'{}'",
        "meta": "'{}'",
        "max_attempts": "5",
        **dict.fromkeys(("priority", "revivals", "deferrals"), "0"),
        "sensitive": "false",
        **dict.fromkeys(("cancel_reason", "note", "error_class", "error"), "''"),
    }
    digits = " UNION ALL ".join(f"SELECT {digit} AS d" for digit in range(10))
    tables = ", ".join(f"({digits}) d{at}" for at in range(6))
    number = " + ".join(f"d{at}.d * {10**at}" for at in range(6))
    quote = connection.ops.quote_name
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO gnl_django_job ({', '.join(map(quote, values))}) "
            f"SELECT {', '.join(values.values())} "
            f"FROM (SELECT {number} AS n FROM {tables}) numbers WHERE n < %s ORDER BY n",
            [kind, queue, state, count],
        )


def analyze() -> None:
    """Let the planner know what the table holds."""
    words = {"postgresql": "ANALYZE", "mysql": "ANALYZE TABLE", "sqlite": "ANALYZE"}
    with connection.cursor() as cursor:
        cursor.execute(f"{words[vendor()]} gnl_django_job")
        if vendor() == "mysql":
            cursor.fetchall()


# statements


@contextmanager
def statements() -> Iterator[list[str]]:
    """Collect the statements that this thread sends, transaction control and planner apart."""
    seen: list[str] = []
    before, connection.force_debug_cursor = connection.force_debug_cursor, True
    connection.ensure_connection()
    connection.queries_log.clear()
    try:
        yield seen
    finally:
        connection.force_debug_cursor = before
        control = re.compile(r"(BEGIN|COMMIT|ROLLBACK|SAVEPOINT|RELEASE|SET |SELECT set_config)")
        seen += [
            query["sql"] for query in connection.queries_log if not control.match(query["sql"])
        ]


# the ring in plain Python


class Ring:
    """R14 and R15 over a dict of lanes: org -> [(id, priority)] in order of insertion."""

    def __init__(self, ready: Mapping[str, Sequence[tuple[int, int]]]) -> None:
        self._ready = {
            org: sorted(jobs, key=lambda job: (-job[1], job[0])) for org, jobs in ready.items()
        }
        every = [(job[0], org) for org, jobs in self._ready.items() for job in jobs]
        self._cursor = min(every)[1] if every else ""
        self._at = True

    def waiting(self) -> list[str]:
        """Return the lanes that have a ready job, by code point."""
        return sorted(org for org, jobs in self._ready.items() if jobs)

    def claim(self, n: int) -> list[int]:
        """Take what one pass for `n` slots takes; return the ids in start order."""
        waiting = self.waiting()
        first = [org for org in waiting if org > self._cursor or (self._at and org == self._cursor)]
        ring = (first + [org for org in waiting if org not in first])[:n]
        taken = []
        for position, org in enumerate(ring):
            quota = n // len(ring) + (1 if position < n % len(ring) else 0)
            jobs, self._ready[org] = self._ready[org][:quota], self._ready[org][quota:]
            taken += [(rank, position, job[0], org) for rank, job in enumerate(jobs)]
        taken.sort()
        if taken:
            self._cursor, self._at = taken[-1][3], False
        return [job for _, _, job, _ in taken]
