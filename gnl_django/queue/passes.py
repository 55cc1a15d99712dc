"""One pass of a worker: promote, reap, settle what has ended, claim what fits, hand it over.

A Driver belongs to one thread: the worker's control thread, or a thread that calls `run_once`. It
never runs users' code itself; `hand_over` decides where handlers run (queue.md R9, R48, R66).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

from gnl_django.core import telemetry
from gnl_django.core.heartbeat import Heartbeat
from gnl_django.core.leases import Lease
from gnl_django.queue.execution import Execution, Outbox
from gnl_django.queue.metrics import Ledger
from gnl_django.queue.options import kinds as registry
from gnl_django.queue.pauses import PauseMap
from gnl_django.queue.retention import Upkeep
from gnl_django.queue.rings import Rings, Taken
from gnl_django.queue.settling import Settling
from gnl_django.queue.store.base import CLAIM_MAX, Outcome, Store
from gnl_django.queue.tracing import span_of


@dataclass(frozen=True)
class Turn:
    """What one pass did: jobs claimed; whether others held all that the rings offered."""

    claimed: int
    contended: bool


class Driver:
    """Passes of one thread."""

    def __init__(
        self,
        store: Store,
        rings: Rings,
        pauses: PauseMap,
        ledger: Ledger,
        heartbeat: Heartbeat,
        settling: Settling,
        outbox: Outbox,
        hand_over: Callable[[list[Execution]], None],
        *,
        queues: Sequence[str],
        poll: float,
        pruning: bool = False,
    ) -> None:
        self._pruning = Upkeep(store) if pruning else None
        self._store = store
        self._rings = rings
        self._pauses = pauses
        self._ledger = ledger
        self._heartbeat = heartbeat
        self._settling = settling
        self._outbox = outbox
        self._hand_over = hand_over
        self._queues = queues
        self._poll = poll
        self._upkeep_at = 0.0
        self._put_off = False
        self._due_at: float | None = None
        #: Tokens of claims whose answer was lost: they may have been committed (R66).
        self._unknown: list[str] = []

    @property
    def open(self) -> int:
        """Jobs this driver has claimed and not settled."""
        return self._settling.open

    @property
    def running(self) -> int:
        """Jobs of this driver whose handlers have not been seen to end."""
        return self._settling.running

    def abandon(self) -> None:
        """Give up outcomes that cannot be written: they count as lost, their leases run out."""
        self._settling.abandon()

    def look_again(self) -> None:
        """Promote with the next pass whenever it was done last: a job for later has come."""
        self._upkeep_at = 0.0

    def until_due(self) -> float | None:
        """Return the seconds until the next scheduled job is due, None when none is known.

        Not more than `poll` while old jobs are being deleted, a batch a pass.
        """
        waits = [] if self._due_at is None else [max(0.0, self._due_at - monotonic())]
        if self._pruning is not None and self._pruning.busy:
            waits.append(self._poll)
        return min(waits, default=None)

    def turn(self, *, idle: bool = False, called: bool = False) -> Turn:
        """Do one pass over the queues.

        idle: the pass before has found nothing and nobody has called since: only look whether there
        is something to do. called: somebody says that there is a job to claim.
        """
        if idle and self._nothing_to_do():
            return Turn(0, contended=False)
        self.release_unknown()
        self._look_after(called=called)
        outcomes = self._ended()
        claimed, contended = 0, False
        # A slot that becomes free meanwhile is for the next pass: that begins with the first queue.
        slots = self._ledger.free
        for queue in self._queues if self._rings.kinds() else ():
            if self._ledger.closed:
                break
            paused = self._paused(queue, outcomes)
            if paused is None:
                continue
            room = self._ledger.reserve(min(slots - claimed, CLAIM_MAX))
            if not room:
                break
            count, crowded = self._claim(queue, room, outcomes, paused)
            outcomes = []
            claimed += count
            contended = contended or crowded
        if outcomes:
            self._settling.settled(self._store.settle(outcomes))
        return Turn(claimed, contended)

    def _nothing_to_do(self) -> bool:
        """Ask in one statement for what a pass does in four (idle at full back-off: 1.25 -> 0.6/s).

        Some stores do not tell: their passes look before they lock anyway.
        """
        kinds = self._rings.kinds()
        due = self._due_at is not None and monotonic() >= self._due_at
        if self.open or self._unknown or due or self._ledger.closed or not kinds:
            return False
        look = self._store.look(self._queues, kinds)
        if look.work:
            self._upkeep_at = 0.0  # it may be something to promote or to reap
            return False
        self._upkeep_at = monotonic() + self._poll
        self._note_due(look.due_in)
        if self._pruning is not None:
            self._pruning.step()
        return True

    def release_unknown(self) -> None:
        """Give back what claims have taken whose answers were lost (R66)."""
        while self._unknown:
            self._store.give_back(self._unknown[0])
            self._unknown.pop(0)

    def settle(self) -> None:
        """Write what has ended, without claiming."""
        outcomes = self._ended()
        if outcomes:
            self._settling.settled(self._store.settle(outcomes))

    def _ended(self) -> list[Outcome]:
        outcomes = self._settling.outcomes(self._outbox.take(), CLAIM_MAX)
        delays = [outcome.delay for outcome in outcomes if outcome.state == "scheduled"]
        if delays:
            # What we are about to schedule is due before an idle worker would look again (R10).
            due_at = monotonic() + min(delays)
            self._due_at = due_at if self._due_at is None else min(self._due_at, due_at)
        # The last progress is written before the outcome; that of others when it is due.
        self._write(self._outbox.reports(due_only=not self._settling.reporting))
        return outcomes

    def _write(self, reporters: Sequence[Execution]) -> None:
        reports = [
            (execution.row.id, execution.lease.token, execution.progress)
            for execution in reporters
            if execution.progress is not None and not execution.lost
        ]
        if not reports:
            return
        try:
            self._store.progress(reports)
        except Exception:
            for execution in reporters:
                self._outbox.reported(execution)
            raise

    def _paused(self, queue: str, outcomes: list[Outcome]) -> tuple[str, ...] | None:
        """Return the paused lanes of `queue`, None when it is paused itself.

        Nothing is claimed on unknown pauses (R50), but outcomes do not wait for them.
        """
        try:
            return self._pauses.lanes(queue)
        except Exception:
            if outcomes:
                self._settling.settled(self._store.settle(outcomes))
            raise

    def _claim(
        self, queue: str, room: int, outcomes: list[Outcome], paused: tuple[str, ...]
    ) -> tuple[int, bool]:
        started: list[Execution] = []
        sent: list[str] = []
        try:
            sent_at = monotonic()
            taken = self._rings.claim(
                self._store, queue, room, outcomes=outcomes, paused=paused, sent=sent
            )
            started = self._executions(taken, sent_at)
        except Exception:
            self._unknown += sent[-1:]
            raise
        finally:
            self._ledger.taken(room, len(started))
        if started:
            self._hand_over(started)
        self._settling.settled(taken.settled)
        return len(started), taken.contended

    def _executions(self, taken: Taken, sent_at: float) -> list[Execution]:
        started = []
        traced = bool(taken.claimed.rows) and telemetry.tracing()
        for row in taken.claimed.rows:
            kind = registry.known(row.kind)
            assert kind is not None  # noqa: S101 - only registered kinds are claimed (R24)
            lease = Lease(row.id, taken.token, good_at=sent_at)
            execution = Execution(row, lease, kind, self._outbox, self._store.using)
            if traced:
                execution.span = span_of(row, self._rings.worker)
            started.append(execution)
        if started:
            self._settling.started(started)
            self._heartbeat.hold([execution.lease for execution in started])
        return started

    def _look_after(self, *, called: bool) -> None:
        """Promote and reap, at most once in `poll` seconds or when a job is known to be due.

        A started worker also deletes old jobs, a batch at a time. A job that it was called for
        comes first: all this waits for the next pass then, but never for two.
        """
        now = monotonic()
        due = self._due_at is not None and now >= self._due_at
        if now < self._upkeep_at and not due:
            return
        if called and not due and not self._put_off:
            self._put_off = True
            return
        self._put_off = False
        self._upkeep_at = now + self._poll
        self._note_due(self._store.promote())
        self._settling.reaped(self._store.reap())
        if self._pruning is not None:
            self._pruning.step()

    def _note_due(self, ahead: float | None) -> None:
        self._due_at = None if ahead is None else monotonic() + ahead
