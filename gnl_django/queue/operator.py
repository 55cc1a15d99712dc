"""What an operator does to a job: revive it, cancel it, run it now, put it away when it is dead.

Called by the admin and the commands. Every act is one conditional UPDATE, so that a second click
and a second operator find it done (queue.md 3.4, R41, R42; studio.md 2.8).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from django.db.models import QuerySet

from gnl_django import conf
from gnl_django.core import failpoints
from gnl_django.core.db import after_commit
from gnl_django.core.payloads import clean_text
from gnl_django.queue import waking
from gnl_django.queue.finals import announce
from gnl_django.queue.models import Job
from gnl_django.queue.store import acts, store_for

CHUNK = 1_000
REASON_MAX = 500


@dataclass(frozen=True)
class BulkResult:
    """How a bulk act went: rows named, rows changed, rows left as they were."""

    matched: int
    changed: int
    skipped: int


def retry_job(job_id: int, *, using: str | None = None) -> int | None:
    """Make a dead or canceled job ready again, with all its attempts; return its id.

    Payload, key, run id and finished steps stay (queue.md R41). Returns None when the job is in
    another state or unknown: a second call changes nothing.
    """
    alias = using or conf.settings().DATABASE
    ids = _possible([job_id])
    changed = store_for(alias).retry(ids, skip_locked=False) if ids else []
    _wake(changed, alias)
    return job_id if changed else None


def retry_jobs(jobs: "QuerySet[Job] | Iterable[int]", *, using: str | None = None) -> BulkResult:
    """Revive many jobs, in chunks of at most 1,000, each a transaction of its own.

    jobs: ids, or a queryset of Job. A row that another transaction holds, or that is neither dead
    nor canceled, is skipped. Returns a BulkResult (queue.md R41).
    """
    # A queryset's own alias, where it names one; what a router would read may be a replica.
    named = getattr(jobs, "_db", None) if isinstance(jobs, QuerySet) else None
    alias = using or named or conf.settings().DATABASE
    store = store_for(alias)
    matched = changed = 0
    for chunk in _chunks(jobs, alias):
        ids = _possible(chunk)
        done = store.retry(ids, skip_locked=True) if ids else []
        failpoints.hit("bulk.chunk")
        matched += len(chunk)
        changed += len(done)
        _wake(done, alias)
    return BulkResult(matched, changed, matched - changed)


def cancel_job(job_id: int, reason: str = "", *, using: str | None = None) -> bool:
    """Cancel a job: at once when it waits, by asking its handler to stop when it runs.

    reason: up to 500 characters; the first one given is kept. Returns False when the job is final
    or unknown (queue.md R42).
    """
    alias = using or conf.settings().DATABASE
    found = store_for(alias).cancel(job_id, _words(reason)) if _possible([job_id]) else None
    if found is None:
        return False
    if found.state == "canceled":
        announce(job_id, found.kind, found.org, found.state, using=alias)
    return True


def _possible(ids: list[int]) -> list[int]:
    """Leave out what no id can be: a database refuses a number beyond its column."""
    return [job_id for job_id in ids if 0 < job_id < 2**63]


def _words(reason: str) -> str:
    """Return a reason as every database takes it."""
    return clean_text(reason, 4 * REASON_MAX)[:REASON_MAX]


def run_job_now(job_id: int, *, using: str | None = None) -> bool:
    """Make a scheduled job ready at once, whatever its `run_at` was or its retry waits for.

    Returns whether this call did it: False when the job is not scheduled or unknown
    (studio.md 2.8).
    """
    alias = using or conf.settings().DATABASE
    changed = bool(_possible([job_id])) and acts.run_now(store_for(alias), job_id)
    _wake([job_id] if changed else [], alias)
    return changed


def discard_job(job_id: int, reason: str = "", *, using: str | None = None) -> bool:
    """Put a dead job away as canceled: nobody need look at it any more.

    It is kept from now on like any canceled job (GNL["KEEP_CANCELED"]), and `retry_job` still
    revives it. reason: up to 500 characters. Returns whether this call did it: False when the job
    is not dead or unknown (studio.md 2.8).
    """
    alias = using or conf.settings().DATABASE
    found = None
    if _possible([job_id]):
        found = acts.discard(store_for(alias), job_id, _words(reason))
    if found is None:
        return False
    announce(job_id, found.kind, found.org, found.state, using=alias)
    return True


def _chunks(jobs: "QuerySet[Job] | Iterable[int]", using: str) -> Iterator[list[int]]:
    if not isinstance(jobs, QuerySet) or jobs.query.is_sliced:
        ids = sorted({job.id for job in jobs} if isinstance(jobs, QuerySet) else set(jobs))
        for at in range(0, len(ids), CHUNK):
            yield ids[at : at + CHUNK]
        return
    newest = Job.objects.using(using).order_by("-id").values_list("id", flat=True).first()
    last = 0
    while newest is not None:
        # By id, up to the newest at the start: rows that come meanwhile are not meant.
        page = jobs.using(using).filter(id__gt=last, id__lte=newest).order_by("id")
        chunk = list(page.values_list("id", flat=True)[:CHUNK])
        if not chunk:
            return
        yield chunk
        last = chunk[-1]


def _wake(ids: list[int], using: str) -> None:
    if ids:
        after_commit(using, partial(waking.wake_everybody, using))
