"""A lease ends early by the holder's own clock, never late."""

from time import monotonic

import pytest

from gnl_django.core import leases
from gnl_django.core.leases import Lease


def test_tokens_are_32_hex_digits_and_never_the_same() -> None:
    tokens = {leases.new_token() for _ in range(1_000)}
    assert len(tokens) == 1_000
    assert all(len(token) == 32 and int(token, 16) >= 0 for token in tokens)


@pytest.mark.parametrize(("ttl", "margin"), [(30, 1.0), (10, 1.0), (5, 0.5), (1, 0.1), (0.2, 0.02)])
def test_a_holder_gives_up_before_its_lease_ends(ttl: float, margin: float) -> None:
    lease = Lease(1, "token", good_at=100.0)
    assert leases.margin(ttl) == pytest.approx(margin)
    assert lease.gives_up_at(ttl) == pytest.approx(100 + ttl - margin)


def test_a_lease_of_30_seconds_renewed_at_10_is_given_up_at_39() -> None:
    # Worked example 5 of the queue's specification.
    assert Lease(1, "token", good_at=10.0).gives_up_at(30) == 39


def test_a_time_limit_counts_from_its_call_and_none_is_no_limit() -> None:
    lease = Lease(1, "token", good_at=0.0)
    assert lease.hold_until is None
    before = monotonic()
    lease.hold_for(5)
    assert lease.hold_until is not None
    assert before + 5 <= lease.hold_until <= monotonic() + 5
    lease.hold_for(None)
    assert lease.hold_until is None


def test_a_new_lease_is_neither_revoked_nor_has_it_failed() -> None:
    lease = Lease(7, "token", good_at=0.0)
    assert (lease.id, lease.token, lease.failures, lease.signal.revoked) == (7, "token", 0, False)
