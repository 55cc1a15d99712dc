"""The queue's stores: `base` is the interface, one module per vendor implements it."""

from functools import cache
from importlib import import_module
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from gnl_django.queue.store.base import Store

_MODULES = {"postgresql": "postgresql", "mysql": "mysql", "sqlite": "sqlite"}


def store_for(using: str, *, prepare: bool = False) -> Store:
    """Return the store of alias `using`; `prepare` keeps plans on a connection of our own (R51)."""
    vendor = connections[using].vendor
    if vendor not in _MODULES:
        raise ImproperlyConfigured(f"gnl_django does not work on {vendor} (alias {using!r})")
    store: Store = _module(vendor).build(using, prepare=prepare)
    return store


@cache  # an enqueue makes a store: 5 us less
def _module(vendor: str) -> Any:
    return import_module(f"gnl_django.queue.store.{_MODULES[vendor]}")
