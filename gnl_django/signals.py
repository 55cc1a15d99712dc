"""Django signals of the package, each sent at most once; those about a write after its commit.

They inform; what must not be lost is done in the transaction itself.
"""

from django.dispatch import Signal

#: A job was stored: `job_id`, `kind`, `queue`, `org` (None when ownerless). Sent in the process and
#: thread that enqueued it; not for a call that its key led to a stored job.
job_enqueued = Signal()

#: A handler is about to run: `job_id`, `kind`, `org`, `attempt` (from 1). Sent in its thread.
job_started = Signal()

#: A job reached a final state: `job_id`, `kind`, `org` (None when ownerless), `state` (R39).
job_finished = Signal()
