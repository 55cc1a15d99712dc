"""Whose turn it is: the place in each queue's ring of lanes, kept by one worker in memory.

A pass asks for n jobs; the store takes them lane by lane from the cursor on; the cursor then stands
on the last lane served (queue.md R14-R17).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gnl_django.core.leases import new_token
from gnl_django.queue.store.base import (
    CLAIM_MAX,
    NOTHING,
    Claimed,
    ClaimRequest,
    Outcome,
    Settled,
    Store,
)

PASSES_MAX = 16


@dataclass(frozen=True)
class Taken:
    """What a pass brought: the outcomes settled on its way, the jobs, the token they carry.

    `contended`: nothing was taken although the ring was not empty, after 16 tries.
    """

    settled: list[Settled]
    claimed: Claimed
    token: str
    contended: bool = False


class Rings:
    """The cursors of one worker, one for each of its queues."""

    def __init__(
        self,
        kinds: Callable[[], tuple[str, ...]],
        *,
        ttl: float,
        worker: str,
        max_attempts: int | None,
    ) -> None:
        #: The kinds to claim, as they are registered now.
        self.kinds = kinds
        self._ttl = ttl
        #: The worker's name, as in Job.worker.
        self.worker = worker
        self._max_attempts = max_attempts
        #: Queue -> the org of the last job taken, and whether the ring starts AT it.
        self._cursors: dict[str, tuple[str, bool]] = {}

    def claim(
        self,
        store: Store,
        queue: str,
        n: int,
        *,
        outcomes: Sequence[Outcome] = (),
        paused: tuple[str, ...] = (),
        sent: list[str] | None = None,
    ) -> Taken:
        """Take up to `n` jobs of `queue`, settling `outcomes` in the same transaction.

        `sent` is given the token of each claim before it is sent: when the answer is lost, it is
        all that is known of the jobs.
        """
        sent = [] if sent is None else sent
        request = self._request(store, queue, min(n, CLAIM_MAX), paused)
        if request is None:
            return Taken(store.settle(outcomes) if outcomes else [], NOTHING, "")
        sent.append(request.token)
        settled, claimed = store.exchange(outcomes, request)
        for _ in range(1, PASSES_MAX):
            if claimed.rows or claimed.lanes < request.n:
                break
            # Every lane seen is being claimed by others: look at the next ones (R16).
            self._cursors[queue] = (claimed.last_lane, False)
            request = self._next_request(request, claimed.last_lane)
            sent.append(request.token)
            claimed = store.claim(request)
        if claimed.rows:
            self._cursors[queue] = (claimed.rows[-1].org, False)
        contended = not claimed.rows and claimed.lanes >= request.n
        return Taken(settled, claimed, request.token, contended)

    def _request(
        self, store: Store, queue: str, n: int, paused: tuple[str, ...]
    ) -> ClaimRequest | None:
        if queue not in self._cursors:
            lane = store.first_lane(queue, self.kinds())
            if lane is None:
                return None
            self._cursors[queue] = (lane, True)
        cursor, at_cursor = self._cursors[queue]
        return self._make(queue, n, cursor, at_cursor=at_cursor, paused=paused)

    def _next_request(self, request: ClaimRequest, cursor: str) -> ClaimRequest:
        return self._make(request.queue, request.n, cursor, at_cursor=False, paused=request.paused)

    def _make(
        self, queue: str, n: int, cursor: str, *, at_cursor: bool, paused: tuple[str, ...]
    ) -> ClaimRequest:
        return ClaimRequest(
            queue=queue,
            kinds=self.kinds(),
            n=n,
            cursor=cursor,
            at_cursor=at_cursor,
            paused=paused,
            token=new_token(),
            ttl=self._ttl,
            worker=self.worker,
            max_attempts=self._max_attempts,
        )
