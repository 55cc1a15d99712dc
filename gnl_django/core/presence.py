"""A running process as others see it: one row, kept up to date by the heartbeat thread.

Made by a worker (later also by schedulers and consumers), beaten by `core.heartbeat`. It knows
nothing of the floor above: numbers come from a callable, commands go to another. It raises nothing:
a row that cannot be written is no reason to stop working.
"""

import logging
from collections.abc import Callable, Sequence
from math import inf
from threading import Event
from time import monotonic

from gnl_django.core import fleet
from gnl_django.core.db import Fault, fault_of, reconnect
from gnl_django.core.fleet import Numbers

logger = logging.getLogger(__name__)

LOCKED_WAIT = 1.0
PRUNE_EVERY = 3_600.0
LEAVE_TRIES = 3
LEAVE_WAIT = 0.1


class Presence:
    """The Process row of this process (studio.md 2.1, R54).

    numbers: asked at each heartbeat. obey: called with "drain" or "resume", from the heartbeat
    thread. beside: what else is to be done with each heartbeat. using: the alias of the row.
    """

    def __init__(
        self,
        role: str,
        name: str,
        queues: Sequence[str],
        numbers: Callable[[], Numbers],
        obey: Callable[[str], object],
        *,
        using: str,
        beside: Callable[[], object] = lambda: None,
    ) -> None:
        self._role = role
        self._name = name
        self._queues = queues
        self._numbers = numbers
        self._obey = obey
        self._using = using
        self._beside = beside
        self._id: int | None = None
        self._failing = False
        self._prune_at = 0.0
        #: Monotonic time of the next heartbeat; never before `begin`.
        self.due_at = inf

    def begin(self) -> None:
        """Let the next look of the heartbeat thread enter the row."""
        self.due_at = 0.0

    def beat(self) -> None:
        """Write the row, obey what it asks, do what is to be done beside."""
        self.due_at = monotonic() + fleet.interval()
        try:
            self._write()
            self._beside()
            if monotonic() >= self._prune_at:
                self._prune_at = monotonic() + PRUNE_EVERY
                fleet.prune(self._using)
        except Exception as error:  # noqa: BLE001 - the process goes on unseen
            reconnect(self._using)
            level = logging.DEBUG if self._failing else logging.WARNING
            logger.log(level, "The heartbeat of %s failed: %s", self._name, _first_line(error))
            self._failing = True
        else:
            self._failing = False

    def end(self) -> None:
        """Note an orderly end; nothing when the row was never entered."""
        if self._id is None:
            return
        self.due_at = inf
        for again in (True, False):  # the connection may have gone since the last heartbeat
            try:
                self._leave(self._id)
            except Exception as error:  # noqa: BLE001 - it will be seen as lost
                reconnect(self._using)
                if again and fault_of(error) is Fault.CONNECTION:
                    continue
                logger.warning("The end of %s is not noted: %s", self._name, _first_line(error))
            break
        self._id = None

    def _leave(self, process_id: int) -> None:
        for _ in range(LEAVE_TRIES):
            if fleet.leave(self._using, process_id, self._numbers()):
                break
            Event().wait(LEAVE_WAIT)

    def _write(self) -> None:
        numbers = self._numbers()
        if self._id is not None:
            answer = fleet.beat(self._using, self._id, numbers)
            if answer.locked:
                self.due_at = min(self.due_at, monotonic() + LOCKED_WAIT)
            if answer.command:
                self._take(self._id, answer)
            if not answer.gone:
                return
        self._id = fleet.enter(self._using, self._name, self._role, self._queues, numbers)

    def _take(self, process_id: int, answer: fleet.Answer) -> None:
        if answer.stale:
            logger.info("%s ignores %r: asked too long ago", self._name, answer.command)
        else:
            logger.info("%s is asked to %s", self._name, answer.command)
            self._obey(answer.command)
        fleet.clear(self._using, process_id, answer, draining=self._numbers().draining)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().split(chr(10))[0][:200]}"
