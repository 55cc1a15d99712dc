"""Ready jobs that nobody will take: no live worker serves their queue, or knows their kind.

Part of `queue.health`. Bounded reads only.
"""

from collections.abc import Sequence
from datetime import datetime

from gnl_django.core import fleet
from gnl_django.core.health import HealthWarning
from gnl_django.core.models import Process
from gnl_django.queue.store import store_for
from gnl_django.queue.store.backlog import Backlog, backlog

#: Ready jobs of unserved kinds from which they slow down claims (queue.md R24).
UNSERVED_MIN = 1_000
#: Entries of the ready index that one call looks at.
READ_MOST = 100_000
KINDS_NAMED = 5


def warnings(using: str, at: datetime) -> list[HealthWarning]:
    """Return what will not be taken on alias `using`; two statements, one when nothing is ready.

    at: the database's present instant (core.db.now).

    `no_worker`: a queue has ready jobs and no live worker serves it; unhealthy. `unserved`: a queue
    has 1,000 or more ready jobs of kinds that none of its live workers has a handler for: they wait
    for ever, and every claim walks past them (queue.md R24). A worker that drains serves nothing.
    Of a backlog beyond 100,000 jobs only that many are looked at.
    """
    ready = backlog(store_for(using), most=READ_MOST)
    if not ready:
        return []
    workers = [worker for worker in fleet.living(using, at=at) if not worker.draining]
    found: list[HealthWarning | None] = []
    for queue in sorted({row.queue for row in ready}):
        rows = [row for row in ready if row.queue == queue]
        serving = [worker for worker in workers if queue in worker.queues]
        found.append(_unserved(queue, rows, serving) if serving else _deserted(queue, rows))
    return [warning for warning in found if warning is not None]


def _deserted(queue: str, rows: Sequence[Backlog]) -> HealthWarning:
    count = sum(row.ready for row in rows)
    text = f"No live worker serves queue {queue}: {_jobs(count)} ready."
    return HealthWarning("no_worker", text, unhealthy=True)


def _unserved(
    queue: str, rows: Sequence[Backlog], serving: Sequence[Process]
) -> HealthWarning | None:
    handled = {kind for worker in serving for kind in worker.kinds}
    strange = sorted(
        (row for row in rows if row.kind not in handled), key=lambda row: (-row.ready, row.kind)
    )
    count = sum(row.ready for row in strange)
    if count < UNSERVED_MIN:
        return None
    names = ", ".join(row.kind for row in strange[:KINDS_NAMED])
    more = f" and {len(strange) - KINDS_NAMED} more" if len(strange) > KINDS_NAMED else ""
    text = (
        f"Queue {queue}: {_jobs(count)} ready of kinds that no live worker has a handler for "
        f"({names}{more}). Give them a queue of their own."
    )
    return HealthWarning("unserved", text)


def _jobs(count: int) -> str:
    if count >= READ_MOST:
        return f"at least {READ_MOST:,} jobs are"
    return "1 job is" if count == 1 else f"{count:,} jobs are"
