"""Faults that a test plants into the product, to see the checkers turn red (reliability 6.1).

A child plants what GNL_TEST_PLANT names; tests in this process plant with monkeypatch.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import transaction

from gnl_django.core import failpoints
from gnl_django.models import Attempt, Job
from gnl_django.queue.listing import Page
from gnl_django.queue.store import postgresql_sql as sql
from gnl_django.queue.store.base import Outcome, Reaped, Store
from gnl_django.queue.store.rowwise_settle import RowwiseSettling, marks


def complete_without_token() -> None:
    """Let a settle write whatever stands in the row (for the rest of this process)."""
    for name in ("SETTLE_PLAIN", "SETTLE_RESULTS"):
        text = getattr(sql, name)
        for part in (
            " AND j.claim_token = h.token AND j.state || '' = 'running'",
            " AND {}state || '' = 'running'".format("" if name == "SETTLE_PLAIN" else "job."),
        ):
            assert part in text, part
            text = text.replace(part, "")
        setattr(sql, name, text)

    def mine(self: Any, pairs: Sequence[tuple[int, str]]) -> dict[tuple[int, str], bool]:
        return dict.fromkeys(pairs, False)

    def successes(self: Any, outcomes: Sequence[Outcome]) -> None:
        if outcomes:
            ids = [outcome.id for outcome in outcomes]
            self.change(
                "UPDATE gnl_django_job SET state='succeeded', finished_at={now}, "
                f"claim_token=NULL, lease_expires_at=NULL WHERE id IN {marks(ids)}",
                ids,
            )

    RowwiseSettling._mine = mine  # type: ignore[method-assign]
    RowwiseSettling._settle_successes = successes  # type: ignore[method-assign]


def naive_reap(self: Store) -> list[Reaped]:
    """Reap what was expired when it was read, whatever has happened since."""
    from gnl_django.core.db import now

    found = list(Job.objects.filter(state="running", lease_expires_at__lte=now(self.using)))
    failpoints.hit("reap.selected")
    for row in found:
        Attempt.objects.create(
            job_id=row.id,
            number=row.attempt,
            revival=row.revivals,
            outcome="lease_lost",
            claim_token=row.claim_token or "",
            started_at=row.started_at,
            finished_at=now(self.using),
        )
        Job.objects.filter(id=row.id).update(
            state="ready", claim_token=None, lease_expires_at=None, finished_at=None
        )
    return [Reaped(row.id, row.kind, row.org, "ready") for row in found]


def free_reap(reap: Callable[[Store], list[Reaped]]) -> Callable[[Store], list[Reaped]]:
    """Return a reap that gives the attempt back."""

    def work(self: Store) -> list[Reaped]:
        reaped = reap(self)
        for job in Job.objects.filter(id__in=[one.id for one in reaped]):
            # Whoever pays nothing for a reap never comes to the end of the attempts.
            Job.objects.filter(id=job.id).update(
                attempt=max(0, job.attempt - 1), state="ready", finished_at=None
            )
        return reaped

    return work


@contextmanager
def commit_in_finally(connection: Any) -> Iterator[None]:
    """Be a transaction that commits also what failed."""
    transaction.set_autocommit(False)
    try:
        yield
    finally:
        connection.commit()
        transaction.set_autocommit(True)


@contextmanager
def no_transaction(connection: Any) -> Iterator[None]:
    """Be no transaction: each statement commits by itself."""
    yield


def offset_pages(*, limit: int, cursor: str | None = None) -> Any:
    """List jobs by counting off the rows of the pages before."""
    start = int(cursor or 0)
    rows = list(Job.objects.order_by("org", "id")[start : start + limit + 1])
    return Page(rows[:limit], str(start + limit) if len(rows) > limit else None)


def plant_from_environment() -> None:
    """Plant what the environment names."""
    if os.environ.get("GNL_TEST_PLANT") == "complete_without_token":
        complete_without_token()
