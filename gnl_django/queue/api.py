"""What users call to give work: one INSERT in the caller's own transaction.

Everything is checked before anything is written; workers of this process are woken after commit
(queue.md 3.2, 3.3, R1-R8).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from gnl_django import conf
from gnl_django.core import failpoints
from gnl_django.core.db import after_commit, alone, own_transaction, retrying
from gnl_django.errors import QueueDepthExceeded
from gnl_django.queue import waking
from gnl_django.queue.options import NewJob, Options, build_rows, options_from
from gnl_django.queue.store import store_for
from gnl_django.queue.store.base import NewRow, Store
from gnl_django.queue.telling import enqueued

if TYPE_CHECKING:
    from gnl_django.queue.kinds import JobKind

T = TypeVar("T")


def enqueue(
    kind: "str | JobKind[Any]",
    payload: Any = None,
    *,
    key: str | None = None,
    org: str | None = None,
    queue: str | None = None,
    run_at: datetime | None = None,
    delay: float | timedelta | None = None,
    priority: int | None = None,
    max_attempts: int | None = None,
    max_depth: int | None = None,
    meta: Mapping[str, Any] | None = None,
    using: str | None = None,
) -> int:
    """Store one job and return its id; it commits or rolls back with the caller (queue.md R1-R8).

    kind: a registered kind's name, or what @job returned. payload: of the kind's type.
    key: 1..255 printable characters; while a job of this org with the key is kept, its id is
    returned and nothing is written. org: whose job it is (None: ownerless); organizations take
    turns. run_at: aware datetime before which it is not run; delay: seconds or timedelta from now.
    priority: -100..100 among the jobs of one org. max_attempts: 1..32767.
    max_depth: refuse when the org already has that many unfinished jobs in the queue.
    meta: up to 16 KiB of JSON for the caller. using: database alias (None: GNL["DATABASE"]).

    Raises UnknownKind, InvalidPayload, QueueDepthExceeded, ValueError or TypeError; then nothing
    is stored.
    """
    options = Options(key, org, queue, run_at, delay, priority, max_attempts, max_depth, meta)
    job = NewJob.with_options(kind, payload, options)
    rows = build_rows([job], max_bytes=conf.settings().PAYLOAD_MAX_BYTES)
    store = store_for(using or conf.settings().DATABASE)
    return _store(store, rows, [max_depth])[0]


def enqueue_many(
    jobs: Iterable[NewJob | Mapping[str, Any]], *, using: str | None = None
) -> list[int]:
    """Store jobs in one transaction, all or none; return their ids in call order (queue.md R6).

    jobs: NewJob, or mappings with the keys `kind`, `payload`, `options`. Keys repeated in the call
    are one job: the first payload wins. using: database alias (None: GNL["DATABASE"]).

    Raises what `enqueue` raises, for the first faulty job; then nothing is stored.
    """
    items = [job if isinstance(job, NewJob) else _from_mapping(job) for job in jobs]
    rows = build_rows(items, max_bytes=conf.settings().PAYLOAD_MAX_BYTES)
    if not rows:
        return []
    depths = [item.options.max_depth for item in items]
    store = store_for(using or conf.settings().DATABASE)
    return _store(store, rows, depths)


def _from_mapping(job: Mapping[str, Any]) -> NewJob:
    if not isinstance(job, Mapping):
        raise TypeError(f"a job is a NewJob or a mapping, not {type(job).__name__}")
    unknown = sorted(set(job) - {"kind", "payload", "options"})
    if unknown or "kind" not in job:
        raise TypeError(f"a job's mapping has kind, payload, options; not {unknown or 'no kind'}")
    options = options_from(job.get("options") or {})
    return NewJob.with_options(job["kind"], job.get("payload"), options)


def _store(store: Store, rows: list[NewRow], depths: list[int | None]) -> list[int]:
    failpoints.hit("enqueue.begin")
    if len(rows) == 1 and depths == [None] and not failpoints.armed():
        ids = [alone(store.connection, partial(store.insert, rows[0]))]
    else:
        ids = _in_transaction(store, lambda: _insert_distinct(store, rows, depths))
    failpoints.hit("enqueue.committed")
    enqueued(store, rows, ids)
    if store.found:  # a key that has led to a stored job brings nothing new
        rows = [row for row, job_id in zip(rows, ids, strict=True) if job_id not in store.found]
    for queue, now in sorted({(row.queue, row.run_at is None and not row.delay) for row in rows}):
        after_commit(store.using, partial(waking.wake, store.using, queue, now=now))
    return ids


def _in_transaction(store: Store, work: Callable[[], T]) -> T:
    def once() -> T:
        with own_transaction(store.connection):
            answer = work()
            failpoints.hit("enqueue.inserted")
            return answer

    return retrying(store.connection, once)


def _insert_distinct(
    store: Store, rows: Sequence[NewRow], depths: Sequence[int | None]
) -> list[int]:
    """Insert each key of the call once, and give every repeat the id of its first."""
    first: dict[str, int] = {}
    chosen: list[int] = []
    for at, row in enumerate(rows):
        if row.dedup is None or first.setdefault(row.dedup, at) == at:
            chosen.append(at)
    kept = [rows[at] for at in chosen]
    if any(depth is not None for depth in depths):
        stored = _insert_bounded(store, kept, [depths[at] for at in chosen])
    else:
        stored = store.insert_many(kept)
    ids = dict(zip(chosen, stored, strict=True))
    return [ids[at if row.dedup is None else first[row.dedup]] for at, row in enumerate(rows)]


def _insert_bounded(
    store: Store, rows: Sequence[NewRow], depths: Sequence[int | None]
) -> list[int]:
    """Insert unless a lane is full; jobs whose key is stored are neither counted nor refused."""
    known = store.find_keys([row.dedup for row in rows if row.dedup])
    lanes = {
        (row.queue, row.org)
        for row, depth in zip(rows, depths, strict=True)
        if depth is not None and row.dedup not in known
    }
    for lane in sorted(lanes):
        store.lock_lane(*lane)
    most = dict.fromkeys(lanes, 0)
    for row, depth in zip(rows, depths, strict=True):
        if depth is not None and row.dedup not in known:
            most[row.queue, row.org] = max(most[row.queue, row.org], depth)
    stored = {lane: store.depth(*lane, stop_at) for lane, stop_at in most.items()}
    added: dict[tuple[str, str], int] = {}
    for row, depth in zip(rows, depths, strict=True):
        if row.dedup in known:
            continue
        lane = (row.queue, row.org)
        if depth is not None:
            present = stored[lane] + added.get(lane, 0)
            if present >= depth:
                raise QueueDepthExceeded(row.kind, present, depth, row.org or None)
        added[lane] = added.get(lane, 0) + 1
    return store.insert_many(rows)
