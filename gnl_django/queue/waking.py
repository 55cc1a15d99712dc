"""Who looks when jobs have come: workers of this process at once, on PostgreSQL others too (R8).

Called after commit by enqueue and by operators' acts; the worker subscribes. Only a short cut: a
wake-up that is lost costs one poll.
"""

from gnl_django.core import listener, wakeup

#: PostgreSQL's channel; the payload is a queue's name, empty for all of them.
CHANNEL = "gnl_jobs"
#: Channels of this process: jobs that are ready, jobs that will be.
READY, LATER = "jobs", "jobs for later"


def wake(using: str, queue: str, *, now: bool) -> None:
    """Wake the workers of `queue`; those of other processes only for jobs that are ready now."""
    wakeup.wake(READY if now else LATER, queue)
    if now:
        listener.notify(using, CHANNEL, queue)


def wake_everybody(using: str) -> None:
    """Wake all workers: jobs of any queue have become ready."""
    wakeup.wake_all(READY)
    listener.notify(using, CHANNEL, "")
