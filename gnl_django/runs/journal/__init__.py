"""The runs' journals: `base` is the interface, one module a vendor (or two) implements it."""

from importlib import import_module

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from gnl_django.runs.journal.shared import SqlJournal

_MODULES = {"postgresql": "postgresql", "mysql": "rowwise", "sqlite": "rowwise"}


def journal_for(using: str) -> SqlJournal:
    """Return the journal of alias `using`."""
    vendor = connections[using].vendor
    if vendor not in _MODULES:
        raise ImproperlyConfigured(f"gnl_django does not work on {vendor} (alias {using!r})")
    module = import_module(f"gnl_django.runs.journal.{_MODULES[vendor]}")
    journal: SqlJournal = module.build(using)
    return journal
