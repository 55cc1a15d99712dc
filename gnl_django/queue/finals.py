"""The one door through which every job passes when it becomes final (queue.md R39).

Called by settle, reap and cancel once they have written; it speaks when that has committed. What it
sends may be lost in a crash, so nothing that must not be lost hangs on it.
"""

import logging
from functools import partial

from django.db import transaction

from gnl_django.signals import job_finished

logger = logging.getLogger(__name__)


def announce(job_id: int, kind: str, org: str, state: str, *, using: str) -> None:
    """Tell whoever listens that a job is `succeeded`, `dead` or `canceled`, after the commit."""
    if job_finished.has_listeners():
        tell = partial(_tell, job_id=job_id, kind=kind, org=org or None, state=state)
        transaction.on_commit(tell, using=using, robust=True)


def _tell(**values: object) -> None:
    for receiver, answer in job_finished.send_robust(sender=None, **values):
        if isinstance(answer, Exception):
            logger.error("A receiver of job_finished failed: %r", receiver, exc_info=answer)
