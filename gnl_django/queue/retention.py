"""How long finished jobs are kept, and their deletion in batches (queue.md R50).

`prune` is called by `gnl_prune`; a worker's `Upkeep` does one batch at a time between its passes,
so that claims go on. Every batch is a transaction of its own: one that is broken off is simply
begun again. Behind the jobs go the durable runs, which may be theirs, and marks.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from time import monotonic
from typing import Any

from gnl_django import conf
from gnl_django.core.db import fault_of, now
from gnl_django.core.loop import RECOVERING
from gnl_django.queue.store import store_for
from gnl_django.queue.store.base import Store
from gnl_django.queue.store.pruning import Cutoffs, delete, look_at_dead, look_at_finished
from gnl_django.runs.retention import batches as run_batches

logger = logging.getLogger(__name__)

#: Seconds between two runs of one worker.
EVERY = 60.0


def prune(*, using: str | None = None) -> dict[str, int]:
    """Delete all that was kept long enough: finished jobs, ended durable runs, marks.

    How long: GNL["KEEP_SUCCEEDED"], ["KEEP_CANCELED"], ["KEEP_DEAD"], ["KEEP_RUNS"],
    ["KEEP_MARKS"]. The jobs' keys are free again. What another transaction holds stays until the
    next time. Returns how many of each: `succeeded`, `canceled`, `dead`, `runs`, `marks`.
    """
    total: Counter[str] = Counter()
    for deleted in batches(store_for(using or conf.settings().DATABASE)):
        total.update(deleted)
    return {part: total[part] for part in ("succeeded", "canceled", "dead", "runs", "marks")}


def batches(store: Store) -> Iterator[dict[str, int]]:
    """Delete batch by batch, each when asked for; yield how many of each sort it held."""
    yield from _jobs(store)
    yield from run_batches(store.using)


def _jobs(store: Store) -> Iterator[dict[str, int]]:
    cutoffs = _cutoffs(store.using)
    if cutoffs.succeeded is not None or cutoffs.canceled is not None:
        place: Any = 0
        last = False
        while not last:
            look = look_at_finished(store, cutoffs, place)
            place, last = look.place, look.last
            yield delete(store, look.ids, cutoffs)
    if cutoffs.dead is not None:
        place, last = None, False
        while not last:
            look = look_at_dead(store, cutoffs, place)
            place, last = look.place, look.last
            yield delete(store, look.ids, cutoffs)


def _cutoffs(using: str) -> Cutoffs:
    settings = conf.settings()
    moment = now(using)
    keeps = (settings.KEEP_SUCCEEDED, settings.KEEP_CANCELED, settings.KEEP_DEAD)
    return Cutoffs(*(None if keep is None else moment - _span(keep) for keep in keeps))


def _span(keep: timedelta | float) -> timedelta:
    return keep if isinstance(keep, timedelta) else timedelta(seconds=keep)


class Upkeep:
    """A worker's share of the pruning: a run a minute, one batch a call. For one thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._next_run = monotonic() + EVERY
        self._run: Iterator[dict[str, int]] | None = None

    @property
    def busy(self) -> bool:
        """Whether a run is under way, so that the next pass should come soon."""
        return self._run is not None

    def step(self) -> None:
        """Delete the next batch, if a run is under way or due.

        An error ends the run, is logged, and does not touch the pass; only when the database does
        not serve at all it is passed on.
        """
        if self._run is None:
            if monotonic() < self._next_run:
                return
            self._next_run = monotonic() + EVERY
            self._run = batches(self._store)
        try:
            if next(self._run, None) is None:
                self._run = None
        except Exception as error:
            self._run = None
            if fault_of(error) in RECOVERING:
                raise
            logger.exception("Old jobs cannot be deleted; the next try comes in %d s", EVERY)
