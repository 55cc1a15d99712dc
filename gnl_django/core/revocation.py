"""The handler's signal: tells code that holds a claim that it has lost the right to go on.

Set by the heartbeat (lease lost, canceled, timeout) or by the worker's stop, read by handlers as
`ctx.signal` (queue.md 3.7). The first reason stays.
"""

import logging
import threading
from collections.abc import Callable
from time import monotonic
from typing import Literal

from gnl_django.errors import ExecutionRevoked

logger = logging.getLogger(__name__)

Why = Literal["canceled", "lease-lost", "timeout"]


class Revocation:
    """One attempt's signal; every method may be called from any thread."""

    __slots__ = ("_callbacks", "_event", "_lock", "_why", "revoked_at")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._event: threading.Event | None = None  # made by the first who waits
        self._callbacks: list[Callable[[], object]] | None = None  # as is the list
        self._why: Why | None = None
        #: Monotonic time of the revocation, for the worker's watch over stuck handlers.
        self.revoked_at: float | None = None

    @property
    def revoked(self) -> bool:
        """Whether the right to go on is lost."""
        return self._why is not None

    @property
    def why(self) -> Why | None:
        """None, "canceled", "lease-lost" or "timeout"."""
        return self._why

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until revoked, at most `timeout` seconds; return whether it is."""
        with self._lock:
            if self._why is not None:
                return True
            if self._event is None:
                self._event = threading.Event()
        return self._event.wait(timeout)

    def raise_if_revoked(self) -> None:
        """Raise ExecutionRevoked when the right to go on is lost."""
        if self._why is not None:
            raise ExecutionRevoked(self._why)

    def on_revoke(self, callback: Callable[[], object]) -> None:
        """Call `callback` once when revoked, from the revoking thread; at once if it is already."""
        with self._lock:
            if self._why is None:
                if self._callbacks is None:
                    self._callbacks = []
                self._callbacks.append(callback)
                return
        _call(callback)

    def forget(self, callback: Callable[[], object]) -> None:
        """Take back an `on_revoke`: what was to be told has ended."""
        with self._lock:
            if self._callbacks is not None and callback in self._callbacks:
                self._callbacks.remove(callback)

    def revoke(self, why: Why) -> bool:
        """Revoke; return whether this call was the first. Not for handlers."""
        with self._lock:
            if self._why is not None:
                return False
            self._why = why
            self.revoked_at = monotonic()
            callbacks, self._callbacks = self._callbacks, None
            if self._event is not None:
                self._event.set()
        for callback in callbacks or ():
            _call(callback)
        return True


def _call(callback: Callable[[], object]) -> None:
    try:
        callback()
    except BaseException:  # SystemExit too: the caller is a thread of ours (3.7)
        logger.exception("on_revoke callback failed")
