"""What an operator does to one job by a conditional UPDATE that is the same on every database.

Called by `queue.operator`; the WHERE names the from-state, so a second call changes nothing
(queue.md 4.7, studio.md 2.8).
"""

from gnl_django.queue.store.base import Canceled, Store, run_of
from gnl_django.runs.journal import journal_for
from gnl_django.runs.journal.owned import follow

RUN_NOW = (
    "UPDATE gnl_django_job SET state='ready', run_at={now} WHERE id = %s AND state = 'scheduled'"
)
DISCARD = (
    "UPDATE gnl_django_job SET state='canceled', finished_at={now}, cancel_reason=%s "
    "WHERE id = %s AND state = 'dead'"
)


def run_now(store: Store, job_id: int) -> bool:
    """Make a scheduled job ready; return whether this call did it."""
    return store.own(lambda: store.change(RUN_NOW, [job_id])) == 1


def discard(store: Store, job_id: int, reason: str) -> Canceled | None:
    """Make a dead job canceled; return it, None when this call did nothing."""

    def work() -> Canceled | None:
        if not store.change(DISCARD, [reason, job_id]):
            return None
        text = "SELECT kind, org, state, run_id FROM gnl_django_job WHERE id = %s"
        *found, run_id = store.rows(text, [job_id])[0]
        follow(journal_for(store.using), {run_of(job_id, run_id): "canceled"})
        return Canceled(*found)

    return store.own(work)
