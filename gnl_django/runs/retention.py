"""How long ended runs and marks are kept, and their deletion in batches (runs.md 2.3).

A run whose owner still exists stays with it (R4a). `gnl_prune` goes through all batches; a worker
does one at a time between its passes.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta

from gnl_django import conf
from gnl_django.core.db import now
from gnl_django.core.registry import run_owners
from gnl_django.runs.journal import journal_for, pruning
from gnl_django.runs.journal.shared import SqlJournal


def batches(using: str) -> Iterator[dict[str, int]]:
    """Delete batch by batch, each when asked for; yield how many `runs` or `marks` it held."""
    journal = journal_for(using)
    settings = conf.settings()
    if (cutoff := _cutoff(settings.KEEP_RUNS, using)) is not None:
        for state in pruning.STATES:
            yield from _runs(journal, state, cutoff)
    if (cutoff := _cutoff(settings.KEEP_MARKS, using)) is not None:
        count = pruning.MARKS
        while count == pruning.MARKS:
            count = pruning.delete_marks(journal, cutoff)
            yield {"marks": count}


def _runs(journal: SqlJournal, state: str, cutoff: datetime) -> Iterator[dict[str, int]]:
    place: pruning.Place | None = None
    while found := pruning.look(journal, state, cutoff, place):
        named = [(run_id, org) for _, run_id, org, _ in found]
        kept: set[str] = set()
        for owner in run_owners():
            mine = [pair for pair in named if pair[0].startswith(owner.prefixes)]
            kept |= owner.kept(mine, journal.using) if mine else set()
        pks = [pk for pk, run_id, _, _ in found if run_id not in kept]
        yield {"runs": pruning.delete(journal, pks, cutoff)}
        place = (found[-1][3], found[-1][0])


def _cutoff(keep: timedelta | float | None, using: str) -> datetime | None:
    if keep is None:
        return None
    return now(using) - (keep if isinstance(keep, timedelta) else timedelta(seconds=keep))
