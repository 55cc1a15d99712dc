"""Pauses as rows: every read and write of QueueState (studio.md 2.2, R50).

Called by `queue.pauses`. The table has a few rows; a paused row is one whose `paused_at` is set. No
more than 200 lanes of a queue are paused at a time, however many people pause at once.
"""

from collections.abc import Sequence
from functools import partial

from django.db import connections

from gnl_django.core.db import alone
from gnl_django.core.statements import Statements
from gnl_django.queue.store.rowwise_settle import marks

#: Stands for all queues in the row of one organization.
EVERY_QUEUE = "*"
LANES_MAX = 200

_PAUSED = "SELECT queue, org FROM gnl_django_queuestate WHERE paused_at IS NOT NULL"
_NEW = (
    "INSERT INTO gnl_django_queuestate (queue, org, paused_by, pause_reason, changed_at) "
    "VALUES (%s, %s, '', '', {now}) "
)
_OR_NOTHING = {
    "postgresql": "ON CONFLICT (queue, org) DO NOTHING",
    "sqlite": "ON CONFLICT (queue, org) DO NOTHING",
    "mysql": "ON DUPLICATE KEY UPDATE id = id",
}
_PAUSE = (
    "UPDATE gnl_django_queuestate SET paused_at={now}, paused_by=%s, pause_reason=%s, "
    "changed_at={now} WHERE queue=%s AND org=%s AND paused_at IS NULL"
)
_RESUME = (
    "UPDATE gnl_django_queuestate SET paused_at=NULL, paused_by='', pause_reason='', "
    "changed_at={now} WHERE queue=%s AND org=%s AND paused_at IS NOT NULL"
)


class TooManyLanes(ValueError):
    """The lane would be the 201st paused one of a queue."""


def paused(using: str) -> list[tuple[str, str]]:
    """Return (queue, org) of every paused row; one small statement."""
    return alone(connections[using], partial(Statements(using).rows, _PAUSED))


def pause(using: str, queue: str, org: str, *, by: str, reason: str) -> bool:
    """Pause the row, which is made if it is missing; return whether this call did it.

    Raises TooManyLanes when 200 other lanes of a queue are paused.
    """
    statements = Statements(using)

    def work() -> bool:
        if org:
            _check_room(using, queue, org)
        _insert(using, queue, org)
        return statements.change(_PAUSE, [by, reason, queue, org]) > 0

    return statements.own(work)


def resume(using: str, queue: str, org: str) -> bool:
    """Clear the pause of the row; return whether there was one."""
    statements = Statements(using)
    return statements.own(lambda: statements.change(_RESUME, [queue, org])) > 0


def enlist(using: str, queues: Sequence[str]) -> None:
    """Make the rows of whole queues that are missing; one read when none is."""
    text = f"SELECT queue FROM gnl_django_queuestate WHERE org='' AND queue IN {marks(queues)}"
    known = {row[0] for row in Statements(using).rows(text, queues)}
    missing = sorted(set(queues) - known)
    if not missing:
        return

    def work() -> None:
        for queue in missing:
            _insert(using, queue, "")

    Statements(using).own(work)


def _check_room(using: str, queue: str, org: str) -> None:
    """Refuse the 201st lane. The paused rows are locked first, so that two callers take turns."""
    if connections[using].vendor != "sqlite":  # there the transaction holds the write lock
        Statements(using).rows(f"{_PAUSED} AND org <> '' ORDER BY id FOR UPDATE")
    lanes: dict[str, set[str]] = {queue: {org}}
    for other, lane in Statements(using).rows(f"{_PAUSED} AND org <> ''"):
        lanes.setdefault(other, set()).add(lane)
    everywhere = lanes.get(EVERY_QUEUE, set())
    named = lanes if queue == EVERY_QUEUE else (queue,)
    if any(len(lanes[name] | everywhere) > LANES_MAX for name in named):
        raise TooManyLanes(f"org: {LANES_MAX} lanes of a queue are paused already")


def _insert(using: str, queue: str, org: str) -> None:
    Statements(using).change(_NEW + _OR_NOTHING[connections[using].vendor], [queue, org])
