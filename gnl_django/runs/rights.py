"""The right to write into a run's journal: rows that must still carry our tokens.

A job's claim gives the right to the job's own run, a run's lock to a run that stands alone; inside
a handler a stand-alone run needs both. Every journal write locks these rows in its own transaction
(runs.md R4): whoever has lost one of them writes nothing.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Right:
    """One row that has to be ours.

    `table`, `token_column` and `state` (the from-state) are names of ours, never a user's;
    `cancel` is a condition over the row that tells whether its owner is asked to stop, `reason` the
    expression that says why.
    """

    table: str
    id: int
    token_column: str
    token: str
    state: str
    cancel: str = "cancel_requested_at IS NOT NULL"
    reason: str = "cancel_reason"


def lock_right(run_pk: int, token: str) -> Right:
    """Return the right that a run's own lock gives."""
    return Right("gnl_django_run", run_pk, "lock_token", token, "running")
