"""Django signals of the package; sent after commit, at most once (shared convention).

They inform; what must not be lost is done in the transaction itself.
"""

from django.dispatch import Signal

#: A job reached a final state: `job_id`, `kind`, `org` (None when ownerless), `state` (R39).
job_finished = Signal()
