"""The one door through which every job passes when it becomes final (queue.md R39).

Called after commit by settle, reap and cancel; what it sends may be lost in a crash, so nothing
that must not be lost hangs on it.
"""

import logging

from gnl_django.signals import job_finished

logger = logging.getLogger(__name__)


def announce(job_id: int, kind: str, org: str, state: str) -> None:
    """Tell whoever listens that a job is `succeeded`, `dead` or `canceled`."""
    if not job_finished.has_listeners():
        return
    answers = job_finished.send_robust(
        sender=None, job_id=job_id, kind=kind, org=org or None, state=state
    )
    for receiver, answer in answers:
        if isinstance(answer, Exception):
            logger.error("A receiver of job_finished failed: %r", receiver, exc_info=answer)
