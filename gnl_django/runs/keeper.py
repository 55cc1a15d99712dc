"""Keeps side-effect claims fresh while their bodies run, in one thread of the process.

So that nobody takes over a claim whose holder is alive, however long its body lasts (runs.md R20).
A body shorter than a third of its claim_ttl costs an entry in a dict and no statement; the thread
ends a while after the last one.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

from gnl_django.core.db import reconnect
from gnl_django.core.leases import RENEWALS_PER_TTL
from gnl_django.runs.journal import journal_for
from gnl_django.runs.journal.base import Journal

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Kept:
    using: str
    step_pk: int
    token: str
    every: float
    due: float


class Keeper:
    """The claims that this process executes."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}
        self._changed = threading.Condition()
        self._wakes_at = 0.0
        self._thread: threading.Thread | None = None

    @contextmanager
    def keeping(
        self, journal: Journal, step_pk: int, token: str, claim_ttl: float
    ) -> Iterator[None]:
        """Extend the claim every third of `claim_ttl` seconds until the block ends.

        Where nobody else can see the claim (a trial, a caller's transaction) there is nothing to
        keep.
        """
        if not journal.shared or journal.connection.in_atomic_block:
            yield
            return
        every = claim_ttl / RENEWALS_PER_TTL
        kept = _Kept(journal.using, step_pk, token, every, monotonic() + every)
        with self._changed:
            self._kept[token] = kept
            self._see_to(kept)
        try:
            yield
        finally:
            with self._changed:
                self._kept.pop(token, None)

    def _see_to(self, kept: _Kept) -> None:
        if self._thread is None or not self._thread.is_alive():  # not in a forked child
            self._wakes_at = kept.due
            self._thread = threading.Thread(target=self._keep, name="gnl-steps", daemon=True)
            self._thread.start()
        elif kept.due < self._wakes_at:
            self._changed.notify()

    def _keep(self) -> None:
        used: set[str] = set()
        while due := self._next_due():
            for kept in due:
                used.add(kept.using)
                try:
                    journal_for(kept.using).extend([(kept.step_pk, kept.token)])
                except Exception:
                    logger.exception("The claim of step %d was not extended", kept.step_pk)
                    reconnect(kept.using)
        for using in used:
            reconnect(using)

    def _next_due(self) -> list[_Kept]:
        """Wait for claims that are due; nothing when none is left, and the thread is to end."""
        with self._changed:
            while self._kept:
                now = monotonic()
                due = [kept for kept in self._kept.values() if kept.due <= now]
                if due:
                    for kept in due:
                        kept.due = now + kept.every
                    return due
                self._wakes_at = min(kept.due for kept in self._kept.values())
                self._changed.wait(self._wakes_at - now)
            self._thread = None
            return []


keeping = Keeper().keeping
