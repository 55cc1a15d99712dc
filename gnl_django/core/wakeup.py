"""Waking loops of this process: an enqueue here is seen by a worker here at once.

Called after commit by enqueue; loops subscribe an Event of theirs. Only an optimisation: a wake-up
that is lost costs one poll.
"""

import threading
from collections.abc import Callable, Iterable

_lock = threading.Lock()
_listeners: dict[tuple[str, str], set[Callable[[], None]]] = {}


def subscribe(channel: str, names: Iterable[str], wake: Callable[[], None]) -> None:
    """Call `wake` (cheap, thread-safe) whenever one of `names` of `channel` has news."""
    with _lock:
        for name in names:
            _listeners.setdefault((channel, name), set()).add(wake)


def unsubscribe(wake: Callable[[], None]) -> None:
    """Forget `wake` everywhere."""
    with _lock:
        for key in [key for key, wakes in _listeners.items() if wake in wakes]:
            _listeners[key].discard(wake)
            if not _listeners[key]:
                del _listeners[key]


def wake(channel: str, name: str) -> None:
    """Wake all who wait for `name` of `channel`."""
    if _listeners:
        with _lock:
            wakes = tuple(_listeners.get((channel, name), ()))
        for call in wakes:
            call()


def wake_all(channel: str) -> None:
    """Wake all who wait for anything of `channel`."""
    with _lock:
        names = [name for kind, name in _listeners if kind == channel]
    for name in names:
        wake(channel, name)
