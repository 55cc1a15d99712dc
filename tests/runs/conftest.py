"""The unit tests of the runs use the fixtures of the conformance tests."""

from tests.conformance.conftest import aside, declare, failpoint, frozen, make_worker

__all__ = ["aside", "declare", "failpoint", "frozen", "make_worker"]
