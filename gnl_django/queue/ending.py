"""Giving jobs back: what a worker does with handlers that outlast its stop (queue.md R44-R46).

Called by `Worker.stop` once the control thread has ended, so that nobody else settles these jobs.
"""

import logging
from threading import Event, Thread
from time import monotonic

from gnl_django.core.db import reconnect, stand_outside_the_pool
from gnl_django.core.heartbeat import Heartbeat
from gnl_django.core.lifelines import impatient
from gnl_django.queue import outcomes
from gnl_django.queue.metrics import Ledger
from gnl_django.queue.settling import Roster, counters_of, say_lost, tell_of_end
from gnl_django.queue.store.base import Store
from gnl_django.queue.tracing import end_span

logger = logging.getLogger(__name__)

PATIENCE = 3.0
LOCKED_WAIT = 0.1


def give_back(
    roster: Roster,
    ledger: Ledger,
    heartbeat: Heartbeat,
    store: Store,
    *,
    notice: float,
    write: bool = True,
) -> None:
    """Revoke what runs, wait `notice` seconds for handlers to see it, release the jobs.

    An outcome that was known before is written instead: its work is done. A row that somebody else
    has locked is tried again for three seconds; after that, when the database is away or silent,
    and without `write`, the lease runs out by itself.
    """
    for execution in list(roster.values()):
        if execution.outcome is None:
            execution.lease.signal.revoke("lease-lost")
            execution.outcome = outcomes.released(execution.lease)
    if notice:
        ledger.wait_returned(notice)
    if not write:
        logger.error("%d jobs cannot be given back; their leases run out", len(roster))
    elif store.connection.in_atomic_block:
        _write(roster, ledger, heartbeat, store)
    else:
        # Aside, because nothing but the process's end stops a wait for a silent database.
        thread = Thread(target=_write_aside, args=(roster, ledger, heartbeat, store), daemon=True)
        thread.start()
        thread.join(PATIENCE + 1.0)
        if thread.is_alive():
            logger.error("The database is silent: %d leases run out by themselves", len(roster))
    for execution in list(roster.values()):
        end_span(execution, None)


def _write_aside(roster: Roster, ledger: Ledger, heartbeat: Heartbeat, store: Store) -> None:
    stand_outside_the_pool(store.using)
    try:
        impatient(store.connection)
        _write(roster, ledger, heartbeat, store)
    finally:
        reconnect(store.using)


def _write(roster: Roster, ledger: Ledger, heartbeat: Heartbeat, store: Store) -> None:
    deadline = monotonic() + PATIENCE
    while roster and monotonic() < deadline:
        batch = [execution.outcome for execution in roster.values() if execution.outcome]
        try:
            answers = store.settle(batch)
            stale = {(a.id, a.token) for a in answers if a.state is None and not a.locked}
            unanswered = [outcome for outcome in batch if (outcome.id, outcome.token) in stale]
            written = store.recorded(unanswered) if unanswered else {}
        except Exception:
            logger.exception("%d jobs cannot be given back; their leases run out", len(batch))
            return
        for answer in answers:
            if not answer.locked:
                execution = roster.pop((answer.id, answer.token))
                heartbeat.drop([execution.lease])
                state = answer.state or written.get((answer.id, answer.token))
                ledger.left(*counters_of(execution, state))
                if state is None:
                    say_lost(execution)
                else:
                    tell_of_end(execution, state, using=store.using)
        if roster:
            Event().wait(LOCKED_WAIT)
