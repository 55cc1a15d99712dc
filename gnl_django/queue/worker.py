"""The Worker: claims jobs and runs their handlers, until it is told to stop.

Three sorts of threads (queue.md R9): one control thread makes passes and owns a connection, slots
run handlers, the heartbeat renews leases. `gnl_worker` runs one; tests and small programs may call
`run_once`.
"""

import logging
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from os import getpid

from django.db import connections, transaction

from gnl_django import conf
from gnl_django.core import clock, leases, wakeup
from gnl_django.core.backoff import Growing, seconds
from gnl_django.core.db import Fault, fault_of, reconnect
from gnl_django.core.heartbeat import Heartbeat
from gnl_django.core.loop import RECOVERING, PollLoop
from gnl_django.core.pool import Pool
from gnl_django.core.registry import autodiscover
from gnl_django.errors import UnknownKind
from gnl_django.queue import execution as executions
from gnl_django.queue import options as opt
from gnl_django.queue.ending import give_back
from gnl_django.queue.execution import Execution, Outbox
from gnl_django.queue.metrics import Ledger, WorkerMetrics
from gnl_django.queue.passes import Driver
from gnl_django.queue.rings import Rings
from gnl_django.queue.settling import OnError, Roster, Settling
from gnl_django.queue.store import store_for

logger = logging.getLogger(__name__)

WORKER_NAME_MAX = 100
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
        settings = conf.settings()
        self.queues = _queues(queues)
        self.ttl = _at_least("ttl", settings.TTL if ttl is None else ttl, leases.MIN_TTL)
        self.poll = _positive("poll", settings.POLL if poll is None else poll)
        longest = max(self.poll, settings.MAX_POLL) if max_poll is None else max_poll
        self.max_poll = _at_least("max_poll", longest, self.poll)
        self.using = using or settings.DATABASE
        self.name = _full_name(name)
        if max_attempts is not None:
            opt.check_integer("max_attempts", max_attempts, 1, opt.ATTEMPTS_LIMIT)
        size = opt.check_integer(
            "concurrency", settings.CONCURRENCY if concurrency is None else concurrency, 1, 10_000
        )
        autodiscover()
        self._max_hold = None if max_hold is None else seconds(max_hold)
        self._on_error = on_error
        self._ledger = Ledger(size)
        self._roster: Roster = {}
        self._stopped = False
        self._rings = Rings(
            _kinds(kinds), ttl=self.ttl, worker=self.name, max_attempts=max_attempts
        )
        self._pool: Pool[Execution] = Pool(size, self._run, name=f"gnl-slot-{getpid()}")
        self._beats = threading.Lock()
        self._beating = 0
        renewing = store_for(self.using)
        self._heartbeat = Heartbeat(
            lambda held: renewing.renew(held, self.ttl),
            ttl=self.ttl,
            using=self.using,
            name="gnl-heartbeat",
        )
        self._idle = Growing(self.poll, self.max_poll if backoff else self.poll)
        self._called = False
        self._at_rest = False
        self._loop = PollLoop(
            self._step,
            using=self.using,
            name=f"Worker {self.name}",
            failed=self._pass_failed,
            idle_wait=self._idle.take,
        )
        self._outbox = Outbox(self._loop.wake)
        self._driver = self._make_driver(self._outbox, self._pool.submit, prepare=settings.PREPARE)

    # driving it

    def start(self) -> None:
        """Start the control thread; the first pass is immediate. Does nothing when it runs."""
        if self._loop.running or self._stopped:
            return
        wakeup.subscribe("jobs", self.queues, self._wake)
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

    def idle(self) -> bool:
        """Return whether the last pass found nothing to run and nothing is open."""
        return self._at_rest and self._ledger.wait_idle(0)

    def run_once(self) -> int:
        """Make one pass over the queues and wait for what it claimed; return the number claimed.

        Inside the caller's `atomic()` handlers run in this thread, on its connection, each in a
        savepoint; else in the pool, with renewal and real commits (queue.md R48).
        """
        inline = connections[self.using].in_atomic_block
        outbox = Outbox(lambda: None)
        hand_over = self._run_inline if inline else self._pool.submit
        driver = self._make_driver(outbox, hand_over, prepare=False)
        with nullcontext() if inline else self._heart():
            turn = driver.turn()
            self._ledger.ticked(clock.wall())
            self._pool.nudge()
            waits = Growing(0.05, self.poll)
            while driver.open:
                outbox.gather(driver.open, self.poll)
                try:
                    driver.settle()
                except Exception as error:  # an outcome outlives an outage (R34)
                    if inline or fault_of(error) not in {*RECOVERING, Fault.TRANSIENT}:
                        raise
                    reconnect(self.using)
                    outbox.gather(driver.open + 1, waits.take())
        return turn.claimed

    def run_until_idle(self) -> int:
        """Call `run_once` until it claims nothing; return the sum. Waits for no future retry."""
        total = 0
        while claimed := self.run_once():
            total += claimed
        return total

    # the control thread

    def _step(self) -> float:
        called, self._called = self._called, False
        if called:
            self._idle.reset()
        turn = self._driver.turn()
        self._ledger.ticked(clock.wall())
        self._at_rest = not turn.claimed and not turn.contended
        if turn.claimed:
            self._idle.reset()
            if self._ledger.free > 0 or self._linger():
                return 0.0
        elif turn.contended:
            self._idle.reset()
        wait = self._idle.take()
        due = self._driver.until_due()
        return wait if due is None else min(wait, due)

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

    def _pass_failed(self, error: Exception) -> None:
        if self._on_error is not None:
            self._on_error(error, None)

    # running handlers

    def _run(self, execution: Execution) -> None:
        hold = execution.kind.max_hold
        self._heartbeat.time_limit(execution.lease, self._max_hold if hold is None else hold)
        try:
            executions.run(execution, executions.tidied)
        finally:
            self._ledger.ended()
            execution.outbox.put(execution)

    def _run_inline(self, started: list[Execution]) -> None:
        for execution in started:
            executions.run(execution, lambda _: transaction.atomic(using=self.using))
            self._ledger.ended()
            execution.outbox.put(execution)

    def _make_driver(
        self, outbox: Outbox, hand_over: Callable[[list[Execution]], None], *, prepare: bool
    ) -> Driver:
        return Driver(
            store_for(self.using, prepare=prepare),
            self._rings,
            self._ledger,
            self._heartbeat,
            Settling(self._ledger, self._heartbeat, self._roster, self._on_error, using=self.using),
            outbox,
            hand_over,
            queues=self.queues,
            poll=self.poll,
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
            self._beating -= 1
            if not self._beating:
                self._heartbeat.stop()

    # the end

    def _end(self, timeout: float | None, *, notice: float) -> bool:
        self._stopped = True
        self._ledger.draining = True
        self._loop.wake()
        ended = self._ledger.wait_idle(timeout)
        wakeup.unsubscribe(self._wake)
        if self._loop.running:
            self._loop.stop(LOOP_PATIENCE)
            self._beat_off()
        if not ended:
            store = store_for(self.using)
            give_back(self._roster, self._ledger, self._heartbeat, store, notice=notice)
        self._pool.close()
        return ended


def _queues(queues: Sequence[str]) -> tuple[str, ...]:
    if isinstance(queues, str) or not queues:
        raise ValueError(f"queues: {queues!r} is not a sequence with a name in it")
    return tuple(opt.check_name("queue", queue, opt.QUEUE_MAX) for queue in queues)


def _kinds(names: Sequence[str] | None) -> Callable[[], tuple[str, ...]]:
    if names is None:
        return lambda: tuple(opt.kinds)
    for name in names:
        if opt.kinds.known(name) is None:
            raise UnknownKind(name)
    chosen = tuple(sorted(set(names)))
    return lambda: chosen


def _full_name(name: str | None) -> str:
    """Return `<name>/<host>/<pid>/<6 random>`, the host cut so that it fits Job.worker."""
    first = opt.check_name("name", "worker" if name is None else name, 40)
    last = f"{getpid()}/{secrets.token_hex(3)}"
    host = socket.gethostname()[: WORKER_NAME_MAX - len(first) - len(last) - 2]
    return f"{first}/{host}/{last}"


def _positive(what: str, value: float) -> float:
    if seconds(value) <= 0:
        raise ValueError(f"{what}: {value!r} is not above 0 seconds")
    return seconds(value)


def _at_least(what: str, value: float, least: float) -> float:
    if seconds(value) < least:
        raise ValueError(f"{what}: {value!r} is below {least} seconds")
    return seconds(value)
