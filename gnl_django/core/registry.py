"""Users' handlers by name, and the search for them in `background.py` of the installed apps.

Filled by decorators at import, asked by enqueue and the workers. Names found in rows are looked up
here and never imported (security.md D2).
"""

import logging
import threading
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Generic, Protocol, TypeVar

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured

logger = logging.getLogger(__name__)

BACKGROUND_MODULE = "background"


class Named(Protocol):
    """What can be registered: a thing that knows where it was written."""

    @property
    def origin(self) -> str:
        """Module and qualified name of the handler."""
        ...


N = TypeVar("N", bound=Named)


class Registry(Generic[N]):
    """Handlers of one sort, by name."""

    def __init__(self, noun: str) -> None:
        self._noun = noun
        self._entries: dict[str, N] = {}

    def register(self, name: str, entry: N) -> None:
        """Enter `entry`. The same code again (a reload) replaces; other code is refused."""
        present = self._entries.get(name)
        if present is not None and present.origin != entry.origin:
            raise ImproperlyConfigured(
                f"{self._noun} {name!r} is declared twice: {present.origin} and {entry.origin}"
            )
        self._entries[name] = entry

    def find(self, name: str) -> N | None:
        """Return the entry, after looking for handlers if that has not happened yet."""
        entry = self._entries.get(name)
        if entry is None and autodiscover():
            entry = self._entries.get(name)
        return entry

    def known(self, name: str) -> N | None:
        """Return the entry among those already imported."""
        return self._entries.get(name)

    def forget(self, name: str) -> None:
        """Take the entry out, so that a test leaves no trace."""
        self._entries.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))


_discovering = threading.RLock()
_discovered = False


def autodiscover() -> bool:
    """Import `background` of every installed app, once a process; True when this call did it.

    A module that fails to import is logged with its traceback; the kinds of the others are served
    all the same.
    """
    global _discovered
    with _discovering:
        if _discovered or not apps.ready:
            return False
        _discovered = True
        for app in apps.get_app_configs():
            name = f"{app.name}.{BACKGROUND_MODULE}"
            try:
                if find_spec(name) is not None:
                    import_module(name)
            except ImproperlyConfigured:
                raise
            except Exception:
                logger.exception("Handlers of %s cannot be imported", name)
        return True
