"""Fixtures of the commands' tests: those of the conformance tests."""

from tests.conformance.conftest import (
    aside,
    declare,
    failpoint,
    finished,
    frozen,
    kind,
    make_worker,
)

__all__ = ["aside", "declare", "failpoint", "finished", "frozen", "kind", "make_worker"]
