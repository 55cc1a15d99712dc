"""A run that stands alone: its lock, the renewal of it, and its outcome (runs.md R2, R5, R7, R26).

Used by `run_durable` outside of its run's handler. Leaving never raises over what the function
returned or raised: a lock that cannot be given back ends by itself.
"""

import logging
import os
import socket
import threading
from functools import partial
from time import monotonic
from typing import Any

from django.db import connections

from gnl_django.core.heartbeat import Heartbeat
from gnl_django.core.leases import Lease, new_token
from gnl_django.core.raised import class_path, text_of
from gnl_django.core.revocation import Revocation
from gnl_django.errors import ExecutionRevoked, InvalidPayload, RunBusy, RunCanceled, StaleClaim
from gnl_django.runs import values
from gnl_django.runs.entry import Entry
from gnl_django.runs.journal import acts, journal_for
from gnl_django.runs.journal.base import Lock
from gnl_django.runs.owners import Owner
from gnl_django.runs.rights import lock_right

logger = logging.getLogger(__name__)

LOCK_TTL = 30.0
NOTE_MAX = 255


class _Hearts:
    """One heartbeat for each alias while runs stand alone in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._beating: dict[str, tuple[Heartbeat, int]] = {}

    def hold(self, using: str, lease: Lease) -> None:
        with self._lock:
            heart, count = self._beating.get(using) or (self._make(using), 0)
            self._beating[using] = (heart, count + 1)
            heart.hold([lease])
            heart.start()  # by one thread at a time

    def drop(self, using: str, lease: Lease) -> None:
        with self._lock:
            heart, count = self._beating.pop(using)
            if count > 1:
                self._beating[using] = (heart, count - 1)
        heart.drop([lease])
        if count == 1:
            heart.stop()

    def _make(self, using: str) -> Heartbeat:
        def renew(leases: Any) -> Any:
            return acts.renew_locks(journal_for(using), leases, LOCK_TTL)

        return Heartbeat(renew, ttl=LOCK_TTL, using=using, name="gnl-runs")


_hearts = _Hearts()

#: (claim or holder, run id) of what runs here: an attempt does not enter a run twice at a time.
_executing: set[tuple[str, str]] = set()


class Standing:
    """One execution of a run that stands alone."""

    def __init__(
        self,
        run_id: str,
        using: str,
        *,
        org: str,
        strict: bool,
        text: str | None,
        signal: Revocation | None,
        owner: Owner | None,
    ) -> None:
        self._using = using
        self._strict = strict
        self._text = text
        self._journal = journal_for(using)
        # A handler's claim in another database gives no right in this one.
        right = None if owner is None or owner.using != using else owner.right
        holder = f"proc:{socket.gethostname()}/{os.getpid()}/{new_token()[:8]}"
        if owner is not None and right is not None:
            holder = owner.holder
        self._lock = Lock(new_token(), holder, LOCK_TTL)
        self._key = (holder if right is None else right.token, run_id)
        self._lease: Lease | None = None
        self._held = False
        self._outer = signal or (owner.signal if owner is not None else None)
        self.entry = Entry(
            run_id,
            self._journal,
            rights=() if right is None else (right,),
            signal=Revocation(),
            org=org or (owner.org if owner is not None else ""),
        )

    def _stop(self) -> None:
        """Stop with the handler; the loss of our own lock, in turn, does not stop that."""
        if self._outer is not None:
            self.entry.signal.revoke(self._outer.why or "canceled")

    def _unlink(self) -> None:
        if self._outer is not None:
            self._outer.forget(self._stop)

    @property
    def has_result(self) -> bool:
        """Whether the run has completed with a result that is stored (R9)."""
        return self.entry.complete and self.entry.entered.result is not None

    @property
    def result(self) -> Any:
        """The stored result."""
        return values.decode(self.entry.entered.result)

    def enter(self) -> Entry:
        """Take the lock and enter; RunBusy, RunCanceled, RunInputMismatch."""
        if self._outer is not None:
            self._outer.on_revoke(self._stop)
        try:
            entry = self._enter()
        except BaseException:
            self._unlink()
            raise
        if self.has_result:
            self._unlink()
        return entry

    def _enter(self) -> Entry:
        sent_at = monotonic()
        if self._key in _executing:  # else it would take its own lock over
            raise RunBusy(self.entry.run_id, retry_in=LOCK_TTL)
        row = self.entry.enter(strict=self._strict, text=self._text, lock=self._lock)
        if self.entry.complete:
            return self.entry
        _executing.add(self._key)
        self._lease = Lease(row.pk, self._lock.token, good_at=sent_at)
        self._lease.signal = self.entry.signal
        self.entry.rights = (*self.entry.rights, lock_right(row.pk, self._lock.token))
        if not connections[self._using].in_atomic_block:  # a test's: nobody else sees the row
            self._held = True
            _hearts.hold(self._using, self._lease)
        try:
            if self._text is not None:
                self.entry.give_input(self._text)
        except BaseException:
            self._leave(self._unlock)
            raise
        return self.entry

    def returned(self, value: Any) -> Any:
        """Write `completed` and return the value as JSON brings it back; see R7."""
        try:
            text, note = values.encode(f"run:{self.entry.run_id}", value), ""
        except InvalidPayload as error:
            text, note = None, f"result not stored: {error.issues[0]}"[:NOTE_MAX]
        except Exception as error:  # noqa: BLE001 - a user's own class may raise anything
            text, note = None, f"result not stored: {type(error).__name__}"[:NOTE_MAX]
        value = value if text is None else values.decode(text)
        if self.entry.complete:
            self._unlink()
            return value
        state = self._leave(
            lambda token, pk: acts.leave(
                self._journal, pk, token, "completed", result=text, note=note
            )
        )
        if state is None:
            raise StaleClaim(f"run {self.entry.run_id!r} was lost before its end was written")
        if state == "canceled":
            raise RunCanceled(self.entry.run_id, self._journal.cancel_reason(self.entry.rights))
        return value

    def failed(self, error: BaseException) -> None:
        """Write what the function's exception means for the run. Raises nothing."""
        if self.entry.complete:
            self._unlink()
            return
        stopped = isinstance(error, (ExecutionRevoked, StaleClaim)) or self.entry.signal.why in {
            "lease-lost",
            "timeout",
        }
        try:
            if stopped:
                self._leave(self._unlock)
            else:
                self._leave(partial(self._fail, error))
        except Exception:
            logger.exception("Run %s ends by its lock's ttl", self.entry.run_id)

    def abandon(self) -> None:
        """Give back what an entry has taken for which nobody waits any more. Raises nothing."""
        if self._lease is None:
            return
        try:
            self._leave(self._unlock)
        except Exception:
            logger.exception("Run %s ends by its lock's ttl", self.entry.run_id)

    def _fail(self, error: BaseException, token: str, run_pk: int) -> str | None:
        return acts.leave(
            self._journal,
            run_pk,
            token,
            "failed",
            error_class=class_path(error),
            error=text_of(error),
        )

    def _unlock(self, token: str, run_pk: int) -> None:
        acts.unlock(self._journal, run_pk, token)

    def _leave(self, write: Any) -> Any:
        """End the renewal, then write: a renewal must never revive what was given back (R5)."""
        lease = self._lease
        assert lease is not None  # noqa: S101 - entered
        _executing.discard(self._key)
        self._unlink()
        if self._held:
            self._held = False
            _hearts.drop(self._using, lease)
        return write(lease.token, lease.id)
