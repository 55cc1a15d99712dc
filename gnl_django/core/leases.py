"""A lease: the right to a row, bounded in time and named by a random token.

Made by a claim, kept alive by `core.heartbeat`. The holder's own monotonic clock only ever ends the
right early; it never extends it (queue.md R26).
"""

import secrets
from time import monotonic

from gnl_django.core.revocation import Revocation

MIN_TTL = 1.0
RENEWALS_PER_TTL = 3
FAILURES_TO_LOSE = 3


def new_token() -> str:
    """Return a claim token: 128 random bits as 32 hex digits (security.md D10)."""
    return secrets.token_hex(16)


def margin(ttl: float) -> float:
    """Return how many seconds before its expiry a holder gives up: min(1 s, ttl / 10).

    So the holder has stopped before anybody else may start, whatever a late answer of the database
    says. The same span separates two tries at a row that somebody else has locked.
    """
    return min(1.0, ttl / 10)


class Lease:
    """One held row.

    `good_at` is the monotonic time at which the last successful claim or renewal was SENT: the
    database's expiry is then at least `good_at + ttl`. `taken_at` is that of the claim.
    """

    __slots__ = ("failures", "good_at", "hold_until", "id", "key", "signal", "taken_at", "token")

    def __init__(self, id: int, token: str, *, good_at: float) -> None:  # noqa: A002 - the row's
        self.id = id
        self.token = token
        #: Names the claim; made once, because several tables of a worker are kept by it.
        self.key = (id, token)
        self.good_at = good_at
        self.taken_at = good_at
        self.hold_until: float | None = None
        self.failures = 0
        self.signal = Revocation()

    def gives_up_at(self, ttl: float) -> float:
        """Return the monotonic time at which the holder must consider the lease lost."""
        return self.good_at + ttl - margin(ttl)

    def hold_for(self, longest: float | None) -> None:
        """Start the clock of `max_hold`: `longest` seconds from now, None = no limit."""
        self.hold_until = None if longest is None else monotonic() + longest
