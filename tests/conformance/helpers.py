"""What the conformance tests share beside fixtures: rows, threads, payload types."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, timedelta
from typing import Any, NoReturn
from uuid import UUID

from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext
from pydantic import BaseModel

from gnl_django.core import db
from gnl_django.core.leases import new_token
from gnl_django.models import Attempt, Job

#: Seconds in which something that must not happen would have happened.
MOMENT = 0.15
DEADLINE = 30.0  # more than anything takes


class Line(BaseModel):
    """Part of an Order."""

    article: str
    count: int


class Order(BaseModel):
    """A payload with something in every depth."""

    number: int
    lines: list[Line] = []
    due: date | None = None


class Badge(BaseModel):
    """A payload whose Python form is not its JSON form."""

    badge: UUID


class Call(threading.Thread):
    """A call in a thread of its own, which closes its connections when it ends."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._value: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        """Do the work."""
        try:
            self._value = self._work()
        except BaseException as error:  # noqa: BLE001 - handed to `result`
            self._error = error
        finally:
            connections.close_all()

    def ends_within(self, seconds: float) -> bool:
        """Wait at most `seconds`; return whether the call has ended."""
        self.join(seconds)
        return not self.is_alive()

    def result(self, timeout: float = DEADLINE) -> Any:
        """Return what the call returned, raise what it raised."""
        assert self.ends_within(timeout), f"{self._work!r} still runs after {timeout} s"
        if self._error is not None:
            raise self._error
        return self._value


def job_of(job_id: int) -> Job:
    """Return the row."""
    return Job.objects.get(id=job_id)


def state_of(job_id: int) -> str:
    """Return the state of a job."""
    return str(Job.objects.values_list("state", flat=True).get(id=job_id))


def columns_of(job_id: int) -> dict[str, Any]:
    """Return every column of a row but its id."""
    found = Job.objects.filter(id=job_id).values().get()
    del found["id"]
    return found


def attempts_of(job_id: int) -> list[Attempt]:
    """Return the Attempt rows of a job, oldest first."""
    return list(Attempt.objects.filter(job_id=job_id).order_by("id"))


def outcomes_of(job_id: int) -> list[str]:
    """Return the outcomes of a job's Attempt rows, oldest first."""
    return [attempt.outcome for attempt in attempts_of(job_id)]


@contextmanager
def statements() -> Iterator[list[str]]:
    """Collect the texts of this thread's statements inside the block."""
    texts: list[str] = []
    with CaptureQueriesContext(connection) as captured:
        yield texts
    texts.extend(query["sql"] for query in captured.captured_queries)


def rows_read(work: Callable[[], object]) -> int:
    """Return how many rows or index entries the statements of `work` read.

    SQLite does not tell; there it is the number of steps of its machine.
    """
    if connection.vendor == "sqlite":
        steps = []
        connection.ensure_connection()
        connection.connection.set_progress_handler(lambda: steps.append(1), 1)
        work()
        connection.connection.set_progress_handler(None, 1)
        return len(steps)
    if connection.vendor == "mysql":
        before = _handler_reads()
        work()
        return _handler_reads() - before
    with statements() as texts:
        work()
    read = 0
    for text in texts:
        with connection.cursor() as cursor:
            cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + text)
            read += _scanned(cursor.fetchone()[0][0]["Plan"])
    return read


def _handler_reads() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
        return sum(
            int(value)
            for name, value in cursor.fetchall()
            if not name.startswith("Handler_read_rnd")
        )


def _scanned(node: dict[str, Any]) -> int:
    read = 0
    if "Relation Name" in node:
        rows = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
        read = round(rows * node["Actual Loops"])
    return read + sum(_scanned(child) for child in node.get("Plans", []))


@contextmanager
def row_held(job_id: int) -> Iterator[None]:
    """Hold a row in an open transaction of another connection (SQLite: the write lock)."""
    taken, free = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            Job.objects.select_for_update().filter(id=job_id).update(note="held")
            taken.set()
            assert free.wait(DEADLINE)
            transaction.set_rollback(True)

    call = Call(hold)
    assert taken.wait(DEADLINE)
    try:
        yield
    finally:
        free.set()
        call.result()


def running(job_id: int, *, lease: timedelta = timedelta(hours=1), attempt: int = 1) -> str:
    """Make a row look claimed by a worker elsewhere; return the claim token."""
    token = new_token()
    now = db.now("default")
    Job.objects.filter(id=job_id).update(
        state="running",
        attempt=attempt,
        claim_token=token,
        lease_expires_at=now + lease,
        started_at=now,
        worker="elsewhere/host/1/abcdef",
    )
    return token


def fail(payload: Any) -> NoReturn:
    """Handler that always fails."""
    raise ValueError("no")
