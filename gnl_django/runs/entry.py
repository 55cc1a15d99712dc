"""One entry into a run: its rights, its place in the code's order, what the journal has.

Shared by everything that touches the run in one attempt (`ctx.step`, `ctx.run`, threads and
tasks): one key space, one counter (runs.md 3.3). It enters lazily, so that a handler without steps
writes nothing (R1).
"""

import logging
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from gnl_django.core.revocation import Revocation
from gnl_django.errors import (
    ExecutionRevoked,
    NonDeterministicRun,
    RunBusy,
    RunCanceled,
    RunInputMismatch,
    StaleClaim,
)
from gnl_django.runs import values
from gnl_django.runs.journal import journal_for
from gnl_django.runs.journal.base import (
    PAGE,
    Journal,
    Lock,
    NewRun,
    Recorded,
    RunRow,
    Written,
    has_other_input,
)
from gnl_django.runs.journal.memory import MemoryJournal
from gnl_django.runs.owners import Owner
from gnl_django.runs.rights import Right

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepInfo:
    """The step whose body runs, or that `recover` is asked about.

    `idempotency_key` is the same in every attempt: pass it downstream.
    """

    key: str
    idempotency_key: str


@dataclass(frozen=True, slots=True)
class Place:
    """A call's place in the code's order."""

    key: str
    ordinal: int


#: The run and the step whose body runs in this thread or task.
inside: "ContextVar[tuple[Entry, StepInfo] | None]" = ContextVar("gnl_django_step", default=None)


@contextmanager
def body_of(entry: "Entry", info: StepInfo) -> Iterator[None]:
    """Let `current_step` and the rule against nesting know whose body runs (R21)."""
    token = inside.set((entry, info))
    try:
        yield
    finally:
        inside.reset(token)


class Entry:
    """A run as one attempt executes it."""

    def __init__(
        self,
        run_id: str,
        journal: Journal,
        *,
        rights: Sequence[Right],
        signal: Revocation,
        org: str = "",
        scheduled_for: datetime | None = None,
        attempt: int | None = None,
    ) -> None:
        self.run_id = run_id
        self.journal = journal
        self.rights = tuple(rights)
        self.signal = signal
        self.org = org
        self.scheduled_for = scheduled_for
        self._attempt = attempt
        self.row: RunRow | None = None
        #: A completed run whose function runs again for its result: everything replays (R9).
        self.complete = False
        #: Thread and transaction of the caller in which it was entered, until that has ended.
        self._block: tuple[int, Any] | None = None
        self._lock = threading.RLock()
        self._uses: Counter[str] = Counter()
        self._ordinal = 0
        self._by_ordinal: dict[int, Recorded] = {}
        self._by_key: dict[str, Recorded] = {}
        #: Ordinals in memory, and (ordinal, id) of the last step that was read.
        self._from = 0
        self._up_to = (0, 0)
        self._more = True

    # entering

    @property
    def entered(self) -> RunRow:
        """The run's row; enters with the defaults when that has not happened yet."""
        return self.enter()

    def enter(
        self, *, strict: bool = True, text: str | None = None, lock: Lock | None = None
    ) -> RunRow:
        """Enter the run once; return its row. `text` is the input as JSON.

        Raises RunBusy, RunCanceled, StaleClaim (and tells the signal), ExecutionRevoked.
        """
        with self._lock:
            if self.row is None or self._undone(self.row):
                self.raise_if_revoked()
                self.row = self._enter(strict=strict, text=text, lock=lock)
                self._block = self._innermost()
            return self.row

    def _innermost(self) -> tuple[int, Any] | None:
        """Return this thread and the caller's transaction in which it stands, None outside."""
        blocks = self.journal.connection.atomic_blocks
        return (threading.get_ident(), blocks[-1]) if blocks else None

    def _undone(self, row: RunRow) -> bool:
        """Tell whether the caller's transaction that has made the run came to nothing."""
        if self._block is None or self._block[0] != threading.get_ident():
            return False
        if self._block[1] in self.journal.connection.atomic_blocks:
            return False
        self._block = self._innermost()
        return not self.journal.has(row.pk)

    def _enter(self, *, strict: bool, text: str | None, lock: Lock | None) -> RunRow:
        digest = None if text is None else values.digest(text)
        new = NewRun(self.run_id, self.org, strict, text, digest, self.scheduled_for)
        row = self.journal.enter(new, self.rights, lock)
        if row is None:
            raise self.lost()
        if row.state == "canceled":
            raise RunCanceled(self.run_id, row.cancel_reason)
        if has_other_input(row, new):
            raise RunInputMismatch(self.run_id)
        if row.state == "completed":
            self.complete = True
        elif not row.entered:
            raise RunBusy(self.run_id, retry_in=row.busy_for)
        # The first entry of all has nothing to replay, and reads nothing.
        self._more = row.entries > 1 or self.complete
        return row

    @property
    def attempt(self) -> int:
        """The owner's attempt; of a run that stands alone the number of its entries."""
        return self.entered.entries if self._attempt is None else self._attempt

    def give_input(self, text: str, *, strict: bool | None = None) -> None:
        """Freeze the run's input, or compare it with the frozen one (R6).

        Raises RunInputMismatch when they differ and the run, or this call of it, is strict.
        """
        row = self.entered
        digest = values.digest(text)
        frozen = row.input_hash
        if frozen is None:
            self.took(self.journal.freeze_input(row.pk, text, digest, self.rights))
            given, frozen = self.journal.input_of(row.pk)
            self.row = replace(row, input=given, input_hash=frozen)
        if frozen == digest:
            return
        if row.strict if strict is None else strict:
            raise RunInputMismatch(self.run_id)
        logger.warning("Run %s goes on with the input it was begun with", self.run_id)

    @property
    def input(self) -> Any:
        """The frozen input, None when none was given."""
        return values.decode(self.entered.input)

    # the order of calls

    def number(self, name: str) -> Place:
        """Give the next call its key and ordinal (R10). RuntimeError inside a step's body."""
        checked = values.check_step_name(name)
        here = inside.get()
        if here is not None and here[0] is self:
            raise RuntimeError(f"step {checked!r} is called inside the body of {here[1].key!r}")
        with self._lock:
            self._ordinal += 1
            self._uses[checked] += 1
            uses = self._uses[checked]
            return Place(checked if uses == 1 else f"{checked}#{uses}", self._ordinal)

    def recorded(self, place: Place) -> Recorded | None:
        """Return what the journal has for a call (R11, R12); NonDeterministicRun when it differs.

        The answer is as old as this entry; only a `done` step can be taken as it is.
        """
        row = self.entered
        with self._lock:
            found = self._in_order(row, place) if row.strict else self._anywhere(row, place)
        if found is None and self.complete:
            raise NonDeterministicRun(self.run_id, place.ordinal, None, place.key)
        return found

    def _in_order(self, row: RunRow, place: Place) -> Recorded | None:
        if place.ordinal < self._from:  # a task that asks late: its page was left behind
            there = self.journal.step(row.pk, place.key)
        else:
            while self._more and self._up_to[0] < place.ordinal:
                # A strict run goes forward: what lies behind is hardly asked for again.
                self._by_ordinal.clear()
                self._by_key.clear()
                self._from = self._up_to[0] + 1
                self._read(row.pk)
            there = self._by_ordinal.get(place.ordinal)
        if there is not None and there.key != place.key:
            raise NonDeterministicRun(self.run_id, place.ordinal, there.key, place.key)
        return there or self._by_key.get(place.key)

    def _anywhere(self, row: RunRow, place: Place) -> Recorded | None:
        while place.key not in self._by_key and self._more:
            self._read(row.pk)
        return self._by_key.get(place.key)

    def _read(self, run_pk: int) -> None:
        page = self.journal.steps(run_pk, self._up_to)
        self._by_ordinal.update({step.ordinal: step for step in page})
        self._by_key.update({step.key: step for step in page})
        self._more = len(page) == PAGE
        if page:
            self._up_to = (page[-1].ordinal, page[-1].pk)

    # the right to go on

    def raise_if_revoked(self) -> None:
        """Raise RunCanceled or ExecutionRevoked when the right to go on is lost (R13)."""
        why = self.signal.why
        if why == "canceled":
            raise RunCanceled(self.run_id, self.journal.cancel_reason(self.rights))
        if why is not None:
            raise ExecutionRevoked(why)

    def took(self, written: Written) -> Written:
        """Look at what a write's rights said; StaleClaim when they are gone (R4, R24)."""
        if not written.held:
            raise self.lost()
        if written.cancel:
            self.signal.revoke("canceled")
        return written

    def lost(self) -> StaleClaim:
        """Tell the signal that the right is gone; return what is to be raised."""
        self.signal.revoke("lease-lost")
        return StaleClaim(f"run {self.run_id!r} is executed by somebody else; nothing was written")

    def info(self, key: str) -> StepInfo:
        """Return what a body may know of its step."""
        return StepInfo(key, f"{self.run_id}/{key}")


def entry_of(owner: Owner) -> Entry:
    """Return the entry into the run of a handler, the same for the whole attempt (R3)."""
    if owner.entry is None:
        right = owner.right
        owner.entry = Entry(
            owner.run_id,
            MemoryJournal(owner.using) if right is None else journal_for(owner.using),
            rights=() if right is None else (right,),
            signal=owner.signal,
            org=owner.org,
            scheduled_for=owner.scheduled_for,
            attempt=owner.attempt,
        )
    return owner.entry
