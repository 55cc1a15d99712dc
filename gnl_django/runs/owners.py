"""Who runs a handler at this moment.

A floor that runs handlers sets `current` around each one; `run_durable`, `ctx.step` and the like
find there the right, the signal and the run of the handler (runs.md R3).
"""

from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from gnl_django.core.revocation import Revocation
from gnl_django.runs.rights import Right

if TYPE_CHECKING:
    from gnl_django.runs.entry import Entry


class Owner(Protocol):
    """A handler's attempt, as the runs see it."""

    #: The run it has entered, None before its first step.
    entry: "Entry | None"

    @property
    def run_id(self) -> str:
        """Name of its run."""

    @property
    def org(self) -> str:
        """Its organization, "" for none."""

    @property
    def using(self) -> str:
        """Alias of the database."""

    @property
    def signal(self) -> Revocation:
        """Tells when its right is lost."""

    @property
    def right(self) -> Right | None:
        """The row that gives it the right to write; None: nothing is written (a trial run)."""

    @property
    def holder(self) -> str:
        """What it is called in the lock of a run that stands alone."""

    @property
    def attempt(self) -> int:
        """Number of the attempt."""

    @property
    def scheduled_for(self) -> datetime | None:
        """The slot it works for."""


#: The handler that runs in this thread or task.
current: ContextVar[Owner | None] = ContextVar("gnl_django_owner", default=None)
