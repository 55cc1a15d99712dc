"""After the handlers: what became of each outcome, told to everybody whom it concerns.

Used by `queue.passes`, which sends the outcomes to the store. An outcome stays pending until the
store has answered for it or the lease is lost (queue.md R27, R33, R34). One that counts as lost may
have been written by a COMMIT whose answer was lost: the row is asked (R66).
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from gnl_django.core.heartbeat import Heartbeat
from gnl_django.queue.execution import Execution
from gnl_django.queue.finals import announce
from gnl_django.queue.listing import JobSummary, summaries
from gnl_django.queue.metrics import Ledger
from gnl_django.queue.models import FINAL
from gnl_django.queue.store.base import Outcome, Reaped, Settled
from gnl_django.queue.tracing import end_span

logger = logging.getLogger(__name__)

OnError = Callable[[BaseException, JobSummary | None], object]
#: `Store.recorded`: what outcomes have left in rows that are no longer ours.
Recorded = Callable[[Sequence[Outcome]], dict[tuple[int, str], str]]


Roster = dict[tuple[int, str], Execution]


class Settling:
    """The executions of one driver and their way out.

    `roster` holds those of all drivers of the worker, for its stop.
    """

    def __init__(
        self,
        ledger: Ledger,
        heartbeat: Heartbeat,
        roster: Roster,
        on_error: OnError | None,
        recorded: Recorded,
        *,
        using: str,
    ) -> None:
        self._ledger = ledger
        self._heartbeat = heartbeat
        self._roster = roster
        self._on_error = on_error
        self._recorded = recorded
        self._using = using
        self._pending: Roster = {}
        self.open = 0

    @property
    def running(self) -> int:
        """Jobs of this driver whose handlers have not been seen to end."""
        return self.open - len(self._pending)

    @property
    def reporting(self) -> bool:
        """Whether a pending outcome has a progress before it."""
        return any(execution.progress is not None for execution in self._pending.values())

    def started(self, executions: Sequence[Execution]) -> None:
        """Note executions that this driver will have to settle."""
        self.open += len(executions)
        self._roster.update({execution.lease.key: execution for execution in executions})

    def outcomes(self, ended: Sequence[Execution], most: int) -> list[Outcome]:
        """Take what has ended; return up to `most` outcomes to be written, lost ones left out."""
        self._pending.update({execution.lease.key: execution for execution in ended})
        self._close((e, None) for e in list(self._pending.values()) if e.lost)
        chosen = islice(self._pending.values(), most)
        return [execution.outcome for execution in chosen if execution.outcome is not None]

    def settled(self, answers: Sequence[Settled]) -> None:
        """Pass on what the store did. Locked rows stay pending and are tried again."""
        self._close((self._pending[a.id, a.token], a.state) for a in answers if not a.locked)

    def _close(self, ends: Iterable[tuple[Execution, str | None]]) -> None:
        """Let executions leave with the states written; with None unless the row says otherwise."""
        answered = list(ends)
        if not answered:
            return
        unanswered = [e.outcome for e, state in answered if state is None and e.outcome is not None]
        written = self._recorded(unanswered) if unanswered else {}
        ended = [(e, state or written.get(e.lease.key)) for e, state in answered]
        self._heartbeat.drop([execution.lease for execution, _ in ended])
        self._leave([(execution, counters_of(execution, state)) for execution, state in ended])
        failed: list[Execution] = []
        for execution, state in ended:
            if state is None:
                continue
            tell_of_end(execution, state, using=self._using)
            if state != "canceled" and _failed(execution):
                _say_failed(execution, state)
                failed.append(execution)
        if failed and self._on_error is not None:
            self._report(self._on_error, failed)

    def abandon(self) -> None:
        """Give up what has ended and cannot be written; the leases run out."""
        self._heartbeat.drop([execution.lease for execution in self._pending.values()])
        self._leave([(execution, ("lost",)) for execution in list(self._pending.values())])

    def reaped(self, jobs: Sequence[Reaped]) -> None:
        """Count and announce what reap took back."""
        self._ledger.count("reaped", len(jobs))
        for job in jobs:
            if job.state in FINAL:
                announce(job.id, job.kind, job.org, job.state, using=self._using)

    def _leave(self, executions: Sequence[tuple[Execution, tuple[str, ...]]]) -> None:
        """Forget executions and count each."""
        left = []
        for execution, counters in executions:
            key = execution.lease.key
            self._pending.pop(key, None)
            self.open -= 1
            if self._roster.pop(key, None) is None:
                continue  # the worker's stop has given it back, and counted it
            left.append(counters)
            if counters == ("lost",):
                say_lost(execution)
        if left:
            self._ledger.left_all(left)

    def _report(self, on_error: OnError, failed: Sequence[Execution]) -> None:
        found = summaries([execution.row.id for execution in failed], using=self._using)
        for execution in failed:
            if execution.error is None:
                continue
            try:
                on_error(execution.error, found.get(execution.row.id))
            except BaseException:  # SystemExit too: the control thread goes on (R12)
                logger.exception("on_error failed for job %d", execution.row.id)


def say_lost(execution: Execution) -> None:
    """Log that nothing was written for an attempt, because its claim is no longer ours (R27)."""
    end_span(execution, None)
    logger.info(
        "StaleClaim: job %d of kind %s was lost before its outcome could be written",
        execution.row.id,
        execution.row.kind,
    )


def _say_failed(execution: Execution, state: str) -> None:
    """Log a failed attempt: the class only, for a message may quote the payload."""
    row, outcome = execution.row, execution.outcome
    logger.log(
        logging.WARNING if state == "dead" else logging.INFO,
        "Job %d (%s) failed, attempt %d of %d: %s; %s",
        row.id,
        row.kind,
        row.attempt,
        row.max_attempts,
        outcome.error_class if outcome is not None else "",
        "dead" if state == "dead" else f"again in {outcome.delay if outcome else 0:g} s",
    )


def tell_of_end(execution: Execution, state: str, *, using: str) -> None:
    """End the attempt's span, and tell whoever listens when the job of `execution` is final."""
    end_span(execution, state)
    if state in FINAL:
        row = execution.row
        announce(row.id, row.kind, row.org, state, using=using, error=execution.error)


def _failed(execution: Execution) -> bool:
    outcome = execution.outcome
    return outcome is not None and outcome.recorded in {"failed", "timeout", "invalid"}


def counters_of(execution: Execution, state: str | None) -> tuple[str, ...]:
    """Return the counters of a job that has left with `state`, None when it was lost."""
    if state is None:
        return ("lost",)
    if state == "succeeded":
        return ("completed",)
    if state == "canceled":
        return ("canceled",)
    if state == "dead":
        return ("failed", "dead_lettered")
    outcome = execution.outcome
    if outcome is not None and outcome.recorded == "released":
        return ("released",)
    return ("deferred",) if outcome is not None and outcome.deferred else ("retried",)
