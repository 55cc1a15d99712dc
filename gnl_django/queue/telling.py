"""Sending the queue's signals: nothing is computed unless somebody listens, and a receiver that
fails is logged and harms nobody.

Called by enqueue and the final door after commit, and by a slot when its handler starts (shared
conventions of the specification).
"""

import logging
from collections.abc import Iterable, Sequence
from functools import partial

from django.dispatch import Signal

from gnl_django.core.db import after_commit
from gnl_django.queue.store.base import ClaimedRow, NewRow, Store
from gnl_django.signals import job_enqueued, job_started

logger = logging.getLogger(__name__)


def heard(signal: Signal) -> bool:
    """Return whether somebody listens; where nobody ever has, without taking the signal's lock."""
    return bool(signal.receivers) and signal.has_listeners()


def tell(signal: Signal, name: str, **values: object) -> None:
    """Send `signal`, called `name`, now."""
    try:
        answers = signal.send_robust(sender=None, **values)
    except BaseException:  # SystemExit too: the caller is a thread of ours (R12)
        logger.exception("A receiver of %s failed", name)
        return
    for receiver, answer in answers:
        if isinstance(answer, Exception):
            logger.error("A receiver of %s failed: %r", name, receiver, exc_info=answer)


def enqueued(store: Store, rows: Sequence[NewRow], ids: Iterable[int]) -> None:
    """Tell of the new jobs among `ids` after the commit; one that its key has found is not new."""
    if not heard(job_enqueued):
        return
    new = {job_id: row for job_id, row in zip(ids, rows, strict=True) if job_id not in store.found}
    told: list[dict[str, object]] = [
        {"job_id": job_id, "kind": row.kind, "queue": row.queue, "org": row.org or None}
        for job_id, row in new.items()
    ]
    after_commit(store.using, partial(_tell_enqueued, told))


def _tell_enqueued(told: Iterable[dict[str, object]]) -> None:
    for values in told:
        tell(job_enqueued, "job_enqueued", **values)


def started(row: ClaimedRow) -> None:
    """Tell that the handler of a claimed job is about to run, in its thread."""
    if heard(job_started):
        tell(
            job_started,
            "job_started",
            job_id=row.id,
            kind=row.kind,
            org=row.org or None,
            attempt=row.attempt,
        )
