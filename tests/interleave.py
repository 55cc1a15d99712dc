"""Every order in which two threads can take their steps, tried one after another.

A step ends at a fail point, at `Explorer.point()` in the program, or at the program's end. A thread
that does not get there within a moment is looked up in PostgreSQL's lock view: when it waits for a
lock, the other must move first. `explore` re-runs the programs until each order has been seen
(reliability.md 5.4).
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from time import monotonic
from typing import Any

from django.db import connection, connections

from gnl_django.core import failpoints

MOMENT = 0.05  # seconds after which a thread that has not arrived is looked up
DEADLINE = 10.0

Program = Callable[[], Any]


@dataclass
class Actor:
    """A thread with a connection of its own; it moves only when it is let go."""

    name: str
    orders: "SimpleQueue[Program | None]" = field(default_factory=SimpleQueue)
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    backend: int = 0
    at: str = ""  # the point where it stands, "" while it moves, "end" when it is through
    value: Any = None
    error: BaseException | None = None


class Explorer:
    """Runs programs under a schedule; a schedule is the list of actors in the order of moves."""

    def __init__(self, count: int, points: Iterable[str]) -> None:
        self._changed = threading.Condition()
        self._actors = [Actor(f"actor-{n}") for n in range(count)]
        self._own = threading.local()
        self._threads = [
            threading.Thread(target=self._live, args=[actor], daemon=True) for actor in self._actors
        ]
        self._points = sorted(points)
        for name in self._points:
            failpoints.hook(name, lambda name=name: self.point(name))
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Let the threads end."""
        for name in self._points:
            failpoints.hook(name, None)
        for actor in self._actors:
            actor.orders.put(None)
        for thread in self._threads:
            thread.join(DEADLINE)

    def point(self, name: str = "point") -> None:
        """Stand still until the schedule lets this thread go on; other threads pass."""
        actor: Actor | None = getattr(self._own, "actor", None)
        if actor is not None:
            self._arrive(actor, name)
            actor.go.acquire()

    def run(self, programs: Sequence[Program], prefix: Sequence[int]) -> list[tuple[int, int]]:
        """Run the programs once: first the moves of `prefix`, then always the first that can.

        Returns the decisions: (number of actors that could move, which of them did).
        """
        for actor, program in zip(self._actors, programs, strict=True):
            actor.at, actor.value, actor.error = "", None, None
            actor.orders.put(program)
        decisions: list[tuple[int, int]] = []
        while True:
            self._settle_down()
            ready = [actor for actor in self._actors if actor.at not in {"", "end"}]
            if not ready:
                if all(actor.at == "end" for actor in self._actors):
                    return decisions
                raise AssertionError(f"nobody can move: {self._actors}")
            wanted = prefix[len(decisions)] if len(decisions) < len(prefix) else 0
            decisions.append((len(ready), wanted))
            actor = ready[wanted]
            actor.at = ""
            actor.go.release()

    def answers(self) -> list[Any]:
        """Return what the programs returned; raise what one of them raised."""
        for actor in self._actors:
            if actor.error is not None:
                raise actor.error
        return [actor.value for actor in self._actors]

    def _live(self, actor: Actor) -> None:
        self._own.actor = actor
        connection.ensure_connection()
        actor.backend = connection.connection.info.backend_pid
        while (program := actor.orders.get()) is not None:
            self.point("start")
            try:
                actor.value = program()
            except BaseException as error:  # noqa: BLE001 - handed on by `answers`
                actor.error = error
            self._arrive(actor, "end")
        connections.close_all()

    def _arrive(self, actor: Actor, name: str) -> None:
        with self._changed:
            actor.at = name
            self._changed.notify_all()

    def _settle_down(self) -> None:
        """Wait until each actor stands at a point, has ended, or waits for another's lock."""
        deadline = monotonic() + DEADLINE
        while True:
            with self._changed:
                self._changed.wait_for(lambda: all(actor.at for actor in self._actors), MOMENT)
                moving = [actor for actor in self._actors if not actor.at]
            if not moving or all(self._waits(actor) for actor in moving):
                return
            assert monotonic() < deadline, f"still moving: {moving}"

    def _waits(self, actor: Actor) -> bool:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s",
                [actor.backend],
            )
            found = cursor.fetchone()
        return bool(found and found[0]) and not actor.at


def explore(
    prepare: Callable[[], Sequence[Program]],
    check: Callable[[list[Any]], None],
    explorer: Explorer,
) -> int:
    """Run every schedule of the programs that `prepare` makes anew each time.

    `check` is given the answers after each run. Returns the number of schedules. A failure names
    the schedule that leads to it.
    """
    prefix: list[int] = []
    runs = 0
    while True:
        decisions = explorer.run(prepare(), prefix)
        runs += 1
        taken = [choice for _, choice in decisions]
        try:
            check(explorer.answers())
        except BaseException as error:
            error.add_note(f"schedule {taken} (run {runs})")
            raise
        while decisions and decisions[-1][1] + 1 >= decisions[-1][0]:
            decisions.pop()
        if not decisions:
            return runs
        prefix = [choice for _, choice in decisions[:-1]] + [decisions[-1][1] + 1]
