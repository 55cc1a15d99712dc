"""Users' handlers by name, the search for them in `background.py`, and the floors' hooks.

Filled by decorators at import, asked by enqueue and the workers. Names found in rows are looked up
here and never imported (security.md D2). Hooks are how a floor answers one below it; they are
registered in AppConfig.ready, act inside the caller's transaction and run no user code.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class RunOwner:
    """What a floor that runs handlers answers about the durable runs of its own (runs.md R4a).

    prefixes: how the ids of these runs begin; nobody else may enter them.
    cancel: `(run_id, org, reason, using) -> bool` asks the owner to stop, before its run is asked;
    False when it is over or refuses.
    kept: `([(run_id, org)], using) -> set of run ids` whose owner still exists: not to be pruned.
    """

    prefixes: tuple[str, ...]
    cancel: Callable[[str, str, str, str], bool]
    kept: Callable[[Sequence[tuple[str, str]], str], set[str]]


_run_owners: list[RunOwner] = []

#: Ids of durable runs that belong to jobs, slots, workflows and events (runs.md 2.1).
RESERVED_RUNS = ("job:", "sched:", "wf:", "evt:")


def add_run_owner(owner: RunOwner) -> None:
    """Register a floor's answers; in AppConfig.ready."""
    if owner not in _run_owners:
        _run_owners.append(owner)


def run_owners() -> list[RunOwner]:
    """Return all that are registered."""
    return list(_run_owners)


def run_owner(run_id: str) -> RunOwner | None:
    """Return who answers for `run_id`, None when it stands alone."""
    return next((owner for owner in _run_owners if run_id.startswith(owner.prefixes)), None)
