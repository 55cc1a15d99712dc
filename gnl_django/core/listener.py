"""PostgreSQL's LISTEN and NOTIFY: other processes see an enqueue at once.

Only an optimisation: what is lost here costs one poll. A listener has a connection of its own
(nothing else of ours keeps session state) and comes back by itself after a loss; behind a pooler
that shares sessions it is off, because nothing would ever be heard (queue.md R8, R51).
"""

import logging
import selectors
import socket
import threading
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

from django.db import connections

from gnl_django import conf
from gnl_django.core.backoff import Growing
from gnl_django.core.db import listen, send_notification, shares_sessions
from gnl_django.core.lifelines import impatient
from gnl_django.core.loop import ERROR_WAIT_FIRST, ERROR_WAIT_LONGEST

logger = logging.getLogger(__name__)

#: Seconds for the thread to end; it may be waiting for a server that is silent.
STOP_PATIENCE = 1.0

#: News for the loops themselves, whatever they serve; its one payload is "pause".
CONTROL = "gnl_control"
NOTIFY_PAUSE = 0.05

_notified: dict[tuple[str, str, str], float] = {}


def enabled(using: str) -> bool:
    """Tell whether NOTIFY is to be used on alias `using` (GNL["NOTIFY"]; None: on PostgreSQL)."""
    return connections[using].vendor == "postgresql" and conf.settings().NOTIFY is not False


def notify(using: str, channel: str, payload: str) -> None:
    """Tell the listeners of `channel`, at most once in 50 ms for each payload of this process.

    Called after commit. What is held back costs one poll at most: the listeners have just been
    woken (always notifying: 1,255 enqueues a second instead of 2,023).
    """
    if not enabled(using):
        return
    key, now = (using, channel, payload), monotonic()
    if now - _notified.get(key, -NOTIFY_PAUSE) < NOTIFY_PAUSE:
        return
    _notified[key] = now
    send_notification(using, channel, payload)


class Listener:
    """A thread that calls `heard(payload)` for each notification of `channel`.

    also: further channels and what is called for theirs; all share one connection.
    """

    def __init__(
        self,
        using: str,
        channel: str,
        heard: Callable[[str], None],
        also: Mapping[str, Callable[[str], None]] | None = None,
    ) -> None:
        self._using = using
        self._heard = {channel: heard, **(also or {})}
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread; does nothing where NOTIFY is off."""
        if self._thread is None and enabled(self._using):
            self._stopping.clear()
            # A byte through this pair ends the wait of a thread that waits for a socket.
            self._bell, self._ear = socket.socketpair()
            self._thread = threading.Thread(target=self._run, name="gnl-listener", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopping.set()
            self._bell.send(b".")
            thread.join(STOP_PATIENCE)
            if not thread.is_alive():  # else it waits for a silent server, and ends with us
                self._bell.close()
                self._ear.close()

    def _run(self) -> None:
        waits = Growing(ERROR_WAIT_FIRST, ERROR_WAIT_LONGEST)
        heard_before = False
        while not self._stopping.is_set():
            wrapper: Any = connections[self._using].copy()
            try:
                self._connect(wrapper)
                if heard_before:
                    for heard in self._heard.values():
                        heard("")  # what was said meanwhile is lost: look once
                heard_before = True
                waits.reset()
                self._listen(wrapper.connection)
            except Exception as error:  # noqa: BLE001 - the loss of this connection is no loss
                if not heard_before:
                    logger.info("LISTEN does not work here (%s); polling alone", error)
                    return
                logger.info("The listener lost its connection: %s", type(error).__name__)
                self._stopping.wait(waits.take())
            finally:
                wrapper.close()

    def _connect(self, wrapper: Any) -> None:
        wrapper.settings_dict["OPTIONS"].pop("pool", None)  # for as long as we listen
        impatient(wrapper)
        wrapper.connect()
        if conf.settings().NOTIFY is None and shares_sessions(wrapper):
            raise RuntimeError("a pooler stands before the server")
        for channel in self._heard:
            listen(wrapper, channel)

    def _listen(self, raw: Any) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(raw.pgconn.socket, selectors.EVENT_READ)
            selector.register(self._ear, selectors.EVENT_READ)
            while not self._stopping.is_set():
                for note in raw.notifies(timeout=0):
                    self._heard[note.channel](note.payload)
                selector.select()
