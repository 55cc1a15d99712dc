"""Users' handlers by name, and the search for them in `background.py` of the installed apps.

Filled by decorators at import, asked by enqueue and the workers. Names found in rows are looked up
here and never imported (security.md D2).
"""

import logging
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Generic, Protocol, TypeVar

from django.apps import AppConfig, apps
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


#: Modules of handlers that could not be imported.
broken: list[str] = []


def module_of(app: AppConfig, name: str) -> ModuleType | None:
    """Import and return the module `name` of an app, None without one.

    One that fails to import is logged with its traceback: the others are served all the same. Only
    ImproperlyConfigured is raised.
    """
    path = f"{app.name}.{name}"
    try:
        return None if find_spec(path) is None else import_module(path)
    except ImproperlyConfigured:
        raise
    except Exception:
        broken.append(path)
        logger.exception("Handlers of %s cannot be imported", path)
        return None


def import_background(app: AppConfig) -> None:
    """Import the `background` of an app; its decorators register what it declares."""
    module_of(app, BACKGROUND_MODULE)


_discoverers: list[Callable[[AppConfig], None]] = [import_background]


def add_discoverer(discover: Callable[[AppConfig], None]) -> None:
    """Have `autodiscover` call `discover(app)` for every installed app too.

    For floors above that find handlers elsewhere than in `background`; in AppConfig.ready.
    """
    if discover not in _discoverers:
        _discoverers.append(discover)


def autodiscover() -> bool:
    """Look for handlers in every installed app, once a process; True when this call did it."""
    global _discovered
    with _discovering:
        if _discovered or not apps.ready:
            return False
        _discovered = True
        for app in apps.get_app_configs():
            for discover in _discoverers:
                discover(app)
        return True
