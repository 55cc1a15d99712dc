"""The one door through which every job passes when it becomes final (queue.md R39).

Called by settle, reap and cancel once they have written; it speaks when that has committed. What it
sends may be lost in a crash, so nothing that must not be lost hangs on it.
"""

from functools import partial

from gnl_django.core.db import after_commit
from gnl_django.queue.options import kinds
from gnl_django.queue.telling import heard, tell
from gnl_django.signals import job_finished


def announce(
    job_id: int,
    kind: str,
    org: str,
    state: str,
    *,
    using: str,
    error: BaseException | None = None,
) -> None:
    """Tell whoever listens that a job is `succeeded`, `dead` or `canceled`, after the commit.

    Its kind is told too when it wants to be; `error` is what made the job dead, where it happened
    in this process.
    """
    if heard(job_finished):
        values = {"job_id": job_id, "kind": kind, "org": org or None, "state": state}
        told = partial(tell, job_finished, "job_finished", **values)
        after_commit(using, told)
    declared = kinds.known(kind)
    if declared is None or declared.wants_finals:
        told = partial(_tell_kind, kind, job_id, state, using, error if state == "dead" else None)
        after_commit(using, told)


def _tell_kind(kind: str, job_id: int, state: str, using: str, error: BaseException | None) -> None:
    declared = kinds.find(kind)
    if declared is not None and declared.wants_finals:
        declared.finished(job_id, state, using, error)
