"""The Worker: claims jobs and runs their handlers, until it is told to stop.

Three sorts of threads (queue.md R9): one control thread makes passes and owns a connection, slots
run handlers, the heartbeat renews leases. `gnl_worker` runs one; tests and small programs may call
`run_once`.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta

from django.db import connections

from gnl_django import conf
from gnl_django.core import clock, wakeup
from gnl_django.core.aio import LoopThread
from gnl_django.core.backoff import Growing
from gnl_django.core.db import transparent_block
from gnl_django.core.heartbeat import Heartbeat
from gnl_django.core.listener import CONTROL, Listener
from gnl_django.core.loop import PollLoop
from gnl_django.core.pool import Pool
from gnl_django.core.registry import autodiscover
from gnl_django.queue import execution as executions
from gnl_django.queue import pauses, waking
from gnl_django.queue.attending import attended
from gnl_django.queue.ending import give_back
from gnl_django.queue.execution import Execution, Outbox
from gnl_django.queue.hygiene import tidied
from gnl_django.queue.metrics import Ledger, WorkerMetrics
from gnl_django.queue.passes import Driver
from gnl_django.queue.report import Report
from gnl_django.queue.rings import Rings
from gnl_django.queue.settling import OnError, Roster, Settling
from gnl_django.queue.store import store_for
from gnl_django.queue.stuck import StuckWatch
from gnl_django.queue.worker_options import WorkerOptions, check_options

logger = logging.getLogger(__name__)

SECOND_WAKES_AFTER = 0.0003
LOOP_PATIENCE = 5.0


class Worker:
    """Runs the jobs of some queues (queue.md 3.5).

    queues: names in order of preference; a later one gets only the slots left.
    concurrency: handlers at the same time. ttl: seconds a claim lasts without renewal (>= 1).
    poll, max_poll: seconds between looks when idle, doubling from the first to the second; with
    backoff=False always the first. max_hold: seconds after which a handler is asked to stop.
    max_attempts: overrides the jobs' own number. kinds: only these kinds (None: all registered,
    []: claims nothing). on_error: called as `fn(exception, JobSummary or None)` for each failed
    attempt and, with None, for a pass that failed. name: first part of the name in Job.worker.
    using: database alias (None: GNL["DATABASE"]).

    Raises ValueError or TypeError for a wrong argument, UnknownKind for a kind without handler.
    """

    def __init__(
        self,
        queues: Sequence[str] = ("default",),
        *,
        concurrency: int | None = None,
        ttl: float | None = None,
        poll: float | None = None,
        max_poll: float | None = None,
        backoff: bool = True,
        max_hold: float | timedelta | None = None,
        max_attempts: int | None = None,
        kinds: Sequence[str] | None = None,
        on_error: OnError | None = None,
        name: str | None = None,
        using: str | None = None,
    ) -> None:
        autodiscover()
        options = check_options(
            queues,
            concurrency=concurrency,
            ttl=ttl,
            poll=poll,
            max_poll=max_poll,
            backoff=backoff,
            max_hold=max_hold,
            max_attempts=max_attempts,
            kinds=kinds,
            name=name,
            using=using,
        )
        self.options = options
        self._on_error = on_error
        self._make_parts(options)

    def _make_parts(self, options: WorkerOptions) -> None:
        self._ledger = Ledger(options.concurrency)
        self._roster: Roster = {}
        self._rings = Rings(
            options.kinds, ttl=options.ttl, worker=options.name, max_attempts=options.max_attempts
        )
        self._pauses = pauses.PauseMap(options.using)
        self._pool: Pool[Execution] = Pool(options.concurrency, self._run, name="gnl-slot")
        self._aio: LoopThread[Execution] = LoopThread(self._run_async, name="gnl-async")
        self._stuck = StuckWatch(self._ledger, self._pool, ttl=options.ttl)
        self._report = Report(options, self._ledger, self._roster)
        self._presence = self._report.presence(self.drain, self.resume, self._keep_pauses)
        renewing = store_for(options.using)
        self._heartbeat = Heartbeat(
            lambda held: renewing.renew(held, options.ttl),
            ttl=options.ttl,
            using=options.using,
            name="gnl-heartbeat",
            pulse=self._presence,
        )
        self._beats = threading.Lock()
        self._beating = 0
        self._idle = Growing(options.poll, options.max_poll)
        self._loop = PollLoop(
            self._step,
            using=options.using,
            name=f"Worker {options.name}",
            failed=self._pass_failed,
            idle_wait=self._idle.take,
        )
        self._outbox = Outbox(self._loop.wake)
        self._driver = self._make_driver(
            self._outbox, self._hand_over, prepare=conf.settings().PREPARE, pruning=True
        )
        self._listener = Listener(
            options.using,
            waking.CHANNEL,
            self._heard,
            {CONTROL: lambda _: self._pauses_changed()},
        )
        self._called = False
        self._enlisted = False
        self._at_rest = False
        self._stopped = False

    # driving it

    def start(self) -> None:
        """Start the control thread; the first pass is immediate. Does nothing when it runs."""
        if self._loop.running or self._stopped:
            return
        wakeup.subscribe(waking.READY, self.options.queues, self._wake)
        wakeup.subscribe(waking.LATER, self.options.queues, self._look_again)
        wakeup.subscribe(pauses.CHANNEL, [pauses.NEWS], self._pauses_changed)
        self._listener.start()
        self._presence.begin()
        self._beat_on()
        self._loop.start()

    def stop(self, timeout: float | None = None) -> bool:
        """Claim nothing more and wait for claim, handlers and settles, at most `timeout` seconds.

        What then still runs is revoked ("lease-lost") and given back at no cost. Returns whether
        all ended by itself (queue.md R45).
        """
        return self._end(timeout, notice=0.0)

    def shut_down(self, grace: float, notice: float = 2.0) -> bool:
        """As `stop(grace)`, with `notice` seconds between revoking and giving back (R46)."""
        return self._end(grace, notice=notice)

    def drain(self) -> None:
        """Claim nothing more; all else goes on. Undone by `resume`."""
        self._ledger.draining = True

    def resume(self) -> None:
        """Claim again; does nothing after `stop`."""
        if not self._stopped:
            self._ledger.draining = False
            self._wake()

    def metrics(self) -> WorkerMetrics:
        """Return a snapshot of the worker's numbers."""
        return self._ledger.snapshot()

    def limit(self, jobs: int) -> None:
        """Claim no more than `jobs` in all; the worker then stays idle."""
        self._ledger.most_runs = jobs

    def holding(self) -> int:
        """Return how many jobs are claimed and not settled."""
        return self._ledger.open

    def idle(self) -> bool:
        """Return whether the last pass found nothing to run and nothing is open."""
        return self._at_rest and self._ledger.wait_idle(0)

    def run_once(self) -> int:
        """Make one pass over the queues and wait for what it claimed; return the number claimed.

        Inside the caller's `atomic()` handlers run in this thread, on its connection, each in a
        savepoint; else in the pool, with renewal and real commits (queue.md R48).
        """
        inline = connections[self.options.using].in_atomic_block
        outbox = Outbox(lambda: None)
        hand_over = self._run_inline if inline else self._hand_over
        driver = self._make_driver(outbox, hand_over)
        with nullcontext() if inline else self._heart():
            using, poll = self.options.using, self.options.poll
            with attended(driver, outbox, using=using, poll=poll, inline=inline):
                turn = driver.turn()
                self._ledger.ticked(clock.wall())
                self._pool.nudge()
        return turn.claimed

    def run_until_idle(self) -> int:
        """Call `run_once` until it claims nothing; return the sum. Waits for no future retry."""
        total = 0
        while claimed := self.run_once():
            total += claimed
        return total

    # the control thread

    def _step(self) -> float:
        if not self._enlisted:
            pauses.enlist(self.options.using, self.options.queues)
            self._enlisted = True
        called, self._called = self._called, False
        if called:
            self._idle.reset()
        turn = self._driver.turn(idle=self._at_rest and not called, called=called)
        self._ledger.ticked(clock.wall())
        self._at_rest = not turn.claimed and not turn.contended
        if turn.claimed:
            self._idle.reset()
            if self._ledger.free > 0:
                self._pool.nudge()
                return 0.0
            if self._linger():
                return 0.0
        elif turn.contended:
            self._idle.reset()
        waits = (
            self._idle.take(),
            self._driver.until_due(),
            self._outbox.report_in(),
            self._stuck.look(list(self._roster.values())),
        )
        return min(wait for wait in waits if wait is not None)

    def _linger(self) -> bool:
        """Wait a moment for the jobs just handed over, so that their outcomes share a pass (R10).

        Returns whether one has ended; its pass may then begin.
        """
        expected = self._ledger.active
        if self._outbox.gather(expected, SECOND_WAKES_AFTER) < expected:
            self._pool.nudge()
            self._outbox.gather(expected, conf.settings().LINGER)
        return self._outbox.gather(1, 0) > 0

    def _wake(self) -> None:
        self._called = True
        self._loop.wake()

    def _look_again(self) -> None:
        self._driver.look_again()
        self._loop.wake()

    def _heard(self, queue: str) -> None:
        if not queue or queue in self.options.queues:
            self._wake()

    def _pauses_changed(self) -> None:
        self._pauses.expire()
        self._wake()

    def _keep_pauses(self) -> None:
        # An idle worker reads them with its passes alone: at most once a poll (R50).
        if self._ledger.active:
            self._pauses.refresh()

    def _pass_failed(self, error: Exception) -> None:
        self._report.pass_failed(error)
        if self._on_error is not None:
            self._on_error(error, None)

    # running handlers

    def _hand_over(self, started: list[Execution]) -> None:
        self._pool.submit([e for e in started if not e.kind.is_async])
        self._aio.submit([e for e in started if e.kind.is_async])

    def _run(self, execution: Execution) -> None:
        self._time_limit(execution)
        try:
            executions.run(execution, tidied)
        finally:
            self._stuck.ended(execution)
            execution.outbox.put(execution)

    async def _run_async(self, execution: Execution) -> None:
        self._time_limit(execution)
        try:
            await executions.run_async(execution)
        finally:
            self._stuck.ended(execution)
            execution.outbox.put(execution)

    def _run_inline(self, started: list[Execution]) -> None:
        for execution in started:
            executions.run(execution, lambda _: transparent_block(self.options.using))
            self._stuck.ended(execution)
            execution.outbox.put(execution)

    def _time_limit(self, execution: Execution) -> None:
        hold = execution.kind.hold_of(execution.row)
        longest = self.options.max_hold if hold is None else hold
        if longest is not None:
            self._heartbeat.time_limit(execution.lease, longest)

    def _make_driver(
        self,
        outbox: Outbox,
        hand_over: Callable[[list[Execution]], None],
        *,
        prepare: bool = False,
        pruning: bool = False,
    ) -> Driver:
        store = store_for(self.options.using, prepare=prepare)
        return Driver(
            store,
            self._rings,
            self._pauses,
            self._ledger,
            self._heartbeat,
            Settling(
                self._ledger,
                self._heartbeat,
                self._roster,
                self._on_error,
                store.recorded,
                using=self.options.using,
            ),
            outbox,
            hand_over,
            queues=self.options.queues,
            poll=self.options.poll,
            pruning=pruning,
        )

    @contextmanager
    def _heart(self) -> Iterator[None]:
        self._beat_on()
        try:
            yield
        finally:
            self._beat_off()

    def _beat_on(self) -> None:
        with self._beats:
            self._beating += 1
            self._heartbeat.start()

    def _beat_off(self) -> None:
        with self._beats:
            self._beating = max(0, self._beating - 1)
            if not self._beating:
                self._heartbeat.stop()

    # the end

    def _end(self, timeout: float | None, *, notice: float) -> bool:
        self._stopped = True
        self._ledger.draining = True
        self._loop.wake()
        ended = self._ledger.wait_idle(timeout)
        wakeup.unsubscribe(self._wake)
        wakeup.unsubscribe(self._look_again)
        wakeup.unsubscribe(self._pauses_changed)
        self._listener.stop()
        running = self._loop.running
        settles = self._loop.stop(LOOP_PATIENCE)
        if running:
            self._beat_off()
        if not ended:
            give_back(
                self._roster,
                self._ledger,
                self._heartbeat,
                store_for(self.options.using),
                notice=notice,
                # A control thread that waits for the database would settle the same jobs.
                write=settles,
            )
        patience = 1.0 if ended else 0.0  # for what is idle to close its connections
        self._pool.close(patience=patience)
        self._aio.close(patience=patience)
        return ended
