"""The queue's unit tests declare kinds as the conformance tests do."""

from hypothesis import settings

from tests.conformance.conftest import declare, frozen, kind

__all__ = ["declare", "frozen", "kind"]

settings.register_profile("gnl", deadline=None, print_blob=True)
settings.load_profile("gnl")
