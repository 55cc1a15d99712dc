"""Pausing a queue or one lane of it, and the copy of the pauses that a worker goes by.

`pause_queue` and `resume_queue` are called by operators; a worker's passes ask its PauseMap before
each claim. A claim that starts later than a second after a pause takes nothing of it (studio.md
R50-R53).
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

from gnl_django import conf
from gnl_django.core import listener, wakeup
from gnl_django.core.db import after_commit, send_notification
from gnl_django.core.payloads import clean_text
from gnl_django.queue import options
from gnl_django.queue.store import pauses as store

logger = logging.getLogger(__name__)

EVERY_QUEUE = store.EVERY_QUEUE
#: Seconds after which a copy is read again before the next claim.
MAX_AGE = 1.0
BY_MAX = 150
REASON_MAX = 200
#: Where loops are woken when a pause has changed; see `core.wakeup`.
CHANNEL, NEWS = "control", "pause"

_changes = 0  # of this process: a copy made before the last one is read again


def pause_queue(
    queue: str,
    *,
    org: str | None = None,
    reason: str = "",
    by: str = "",
    using: str | None = None,
) -> bool:
    """Let no worker claim from `queue`, or from one organization's lane of it (studio.md 2.8).

    What runs goes on; enqueues, retries and all else too. Workers see it within a second of the
    commit. org: None or "" for the whole queue; with an org, queue may be "*": that org's lanes of
    all queues. reason: up to 200 characters. by: who asks, up to 150. using: database alias (None:
    GNL["DATABASE"]).

    Returns True if paused by this call; False when it was paused already: then the first name,
    reason and time stay. Raises ValueError or TypeError for a bad name, "*" without org, or the
    201st paused lane of a queue.
    """
    lane = _lane(queue, org)
    alias = using or conf.settings().DATABASE
    done = store.pause(alias, queue, lane, by=_cut(by, BY_MAX), reason=_cut(reason, REASON_MAX))
    if done:
        logger.info("%s is paused by %s", _name(queue, lane), by or "somebody")
        _announce(alias)
    return done


def resume_queue(
    queue: str, *, org: str | None = None, by: str = "", using: str | None = None
) -> bool:
    """Undo `pause_queue` of the same queue and org; workers look at once.

    (Without NOTIFY those of other processes look at their next poll.)

    A paused queue and a paused lane in it are two pauses: each is resumed by itself. by: who asks,
    for the log. using: database alias (None: GNL["DATABASE"]).

    Returns True if it was paused. Raises as `pause_queue` does (studio.md 2.8, R53).
    """
    lane = _lane(queue, org)
    alias = using or conf.settings().DATABASE
    done = store.resume(alias, queue, lane)
    if done:
        logger.info("%s is resumed by %s", _name(queue, lane), by or "somebody")
        _announce(alias)
    return done


@dataclass(frozen=True)
class _Copy:
    """What was paused at one moment; `everywhere` are the orgs of the rows for all queues."""

    read_at: float
    change: int
    queues: frozenset[str]
    everywhere: frozenset[str]
    lanes: dict[str, frozenset[str]]


class PauseMap:
    """One worker's copy of the pauses; any thread may ask it."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._copy: _Copy | None = None

    def lanes(self, queue: str) -> tuple[str, ...] | None:
        """Return the paused lanes of `queue`, None when all of it is paused.

        Reads the pauses when the copy is a second old, or older than a change made in this process.
        Raises what the database raises: nothing may be claimed then.
        """
        copy = self._copy
        if copy is None or self._old(copy):
            copy = self.read()
        if queue in copy.queues:
            return None
        return tuple(sorted(copy.everywhere | copy.lanes.get(queue, frozenset())))

    def read(self) -> _Copy:
        """Make a new copy; one small statement on this thread's connection."""
        read_at, change = monotonic(), _changes
        rows = store.paused(self._using)
        by_queue: dict[str, set[str]] = {}
        for queue, org in rows:
            if org:
                by_queue.setdefault(queue, set()).add(org)
        everywhere = frozenset(by_queue.pop(EVERY_QUEUE, ()))
        self._copy = _Copy(
            read_at,
            change,
            queues=frozenset(queue for queue, org in rows if not org),
            everywhere=everywhere,
            lanes={queue: frozenset(orgs) for queue, orgs in by_queue.items()},
        )
        return self._copy

    def refresh(self) -> None:
        """Read the pauses if the copy has come of age."""
        if self._copy is None or self._old(self._copy):
            self.read()

    def expire(self) -> None:
        """Let the next claim read them, however young the copy is."""
        self._copy = None

    @staticmethod
    def _old(copy: _Copy) -> bool:
        return copy.change != _changes or monotonic() - copy.read_at >= MAX_AGE


def enlist(using: str, queues: Sequence[str]) -> None:
    """Make the rows of a starting worker's queues, so that people see them (studio.md 2.2)."""
    store.enlist(using, queues)


def _announce(using: str) -> None:
    # At once too: inside a test's transaction nothing is ever committed.
    _expire_copies()

    def tell() -> None:
        _expire_copies()
        wakeup.wake(CHANNEL, NEWS)
        if listener.enabled(using):  # each time: an operator's acts are few
            send_notification(using, listener.CONTROL, NEWS)

    after_commit(using, tell)


def _expire_copies() -> None:
    global _changes
    _changes += 1


def _lane(queue: object, org: str | None) -> str:
    lane = options.check_org(None if org == "" else org)
    if queue == EVERY_QUEUE:
        if not lane:
            raise ValueError("queue: '*' stands for the lanes of one org in all queues: name it")
    else:
        options.check_name("queue", queue, options.QUEUE_MAX)
    return lane


def _cut(text: str, longest: int) -> str:
    return clean_text(text, 4 * longest)[:longest]


def _name(queue: str, lane: str) -> str:
    return f"Lane {lane!r} of queue {queue}" if lane else f"Queue {queue}"
