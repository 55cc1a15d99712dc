"""`run`: what a durable function does its steps through, in sync and in async code (runs.md 3.2).

Made by `runs.api` for a function, and by floors that run handlers for `ctx.step`. The two classes
differ in how they call users' code and where they reach the database: a coroutine never does so on
the event loop.
"""

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any

from asgiref.sync import sync_to_async

from gnl_django.core.revocation import Revocation
from gnl_django.runs import marks, steps
from gnl_django.runs.entry import Entry, body_of
from gnl_django.runs.steps import Call, NotBegun, Steps


class _Facts:
    """What a durable function knows of its run."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry

    @property
    def run_id(self) -> str:
        """Name of the run."""
        return self.entry.run_id

    @property
    def org(self) -> str | None:
        """The organization it belongs to, None when ownerless."""
        return self.entry.org or None

    @property
    def input(self) -> Any:
        """The frozen input, None when none was given (runs.md R6)."""
        return self.entry.input

    @property
    def attempt(self) -> int:
        """How often the run was entered, from 1."""
        return self.entry.entered.entries

    @property
    def scheduled_for(self) -> datetime | None:
        """The slot it is for, aware UTC."""
        return self.entry.scheduled_for

    @property
    def signal(self) -> Revocation:
        """Tells when the right to go on is lost."""
        return self.entry.signal

    def _step(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        **how: Any,
    ) -> Steps:
        options = steps.options(function, **how)
        place = self.entry.number(name)
        return steps.step(self.entry, place, partial(function, *args, **kwargs), options)

    def _claim(self, key: str, value: Any) -> bool:
        name = marks.key_of(key, self.run_id)
        self.entry.enter()
        return marks.claim_in(self.entry.journal, name, value)

    def _look(self, key: str) -> Any:
        name = marks.key_of(key, self.run_id)
        self.entry.enter()
        return marks.look(self.entry.journal, name)

    def _freeze(self, key: str, value: Any) -> Any:
        return marks.freeze(self.entry.journal, marks.key_of(key, self.run_id), value)


class RunContext(_Facts):
    """The run of a synchronous function."""

    def step(
        self,
        name: str,
        fn: Callable[..., Any],
        *args: Any,
        side_effect: bool = False,
        recover: Callable[..., Any] | None = None,
        claim_ttl: int | None = None,
        atomic: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Call `fn(*args, **kwargs)` once for this run and return what it returned, as JSON.

        When the run is entered again after a crash, a step that was recorded is not called: its
        recorded output is returned. What may happen around a crash depends on the mode:

        - plain: `fn` is called again when the crash came before the record (at least once).
        - side_effect=True: the step is claimed before `fn` is called, and never called again while
          nobody knows whether it happened (at most once). `recover(StepInfo)` may find out: it
          returns {"done": True, "output": ..} or {"done": False}; without it the run stops with
          StepUnresolved. claim_ttl (seconds, 60): how long a claim counts as being executed.
        - atomic=True: `fn` and the record are one transaction of this database (exactly once).

        name: 1..200 printable characters without `#`; a name used again is numbered `name#2`.
        Raises ValueError or TypeError for wrong arguments, InvalidPayload for an output that is no
        JSON or exceeds 1 MiB, NonDeterministicRun, StepInFlight, StepUnresolved, RunCanceled,
        ExecutionRevoked, StaleClaim, RuntimeError inside another step, and whatever `fn` raises
        (runs.md R10-R21).
        """
        return _drive(
            self.entry,
            self._step(
                name, fn, args, kwargs, side_effect=side_effect, recover=recover,
                claim_ttl=claim_ttl, atomic=atomic,
            ),
        )  # fmt: skip

    def claim(self, key: str, value: Any = True) -> bool:
        """Return True for the first call with `key` in this run, ever (runs.md R23)."""
        return self._claim(key, value)

    def frozen(self, key: str, compute: Callable[[], Any]) -> Any:
        """Return what `compute` gave the first time it was asked in this run (runs.md R23)."""
        found = self._look(key)
        return self._freeze(key, compute()) if found is marks.ABSENT else found


class AsyncRunContext(_Facts):
    """The run of a coroutine function: the same names, as coroutines."""

    def step(
        self,
        name: str,
        fn: Callable[..., Any],
        *args: Any,
        side_effect: bool = False,
        recover: Callable[..., Any] | None = None,
        claim_ttl: int | None = None,
        atomic: bool = False,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, Any]:
        """As RunContext.step; `fn` may be a coroutine function, others run in a thread.

        The call has its place in the order of steps when it is made, not when it is awaited.
        """
        return _drive_async(
            self.entry,
            self._step(
                name, fn, args, kwargs, side_effect=side_effect, recover=recover,
                claim_ttl=claim_ttl, atomic=atomic,
            ),
        )  # fmt: skip

    async def claim(self, key: str, value: Any = True) -> bool:
        """As RunContext.claim."""
        return await sync_to_async(self._claim)(key, value)

    async def frozen(self, key: str, compute: Callable[[], Any]) -> Any:
        """As RunContext.frozen; `compute` may be a coroutine function."""
        found = await sync_to_async(self._look)(key)
        if found is not marks.ABSENT:
            return found
        value = await compute() if inspect.iscoroutinefunction(compute) else compute()
        return await sync_to_async(self._freeze)(key, value)


def _drive(entry: Entry, progress: Steps) -> Any:
    """Call what a step asks for in this thread."""
    try:
        call = next(progress)
        while True:
            try:
                value = _call(entry, call)
            except BaseException as error:  # noqa: BLE001 - the step decides what it means
                call = progress.throw(error)
            else:
                call = progress.send(value)
    except StopIteration as end:
        return end.value


def _call(entry: Entry, call: Call) -> Any:
    with body_of(entry, call.info):
        return call.function()


async def _drive_async(entry: Entry, progress: Steps) -> Any:
    """Await what a step asks for; the journal's statements run in the thread for them."""
    turn = await _advance_aside(progress, partial(next, progress))
    while isinstance(turn, Call):
        try:
            value = await _await(entry, turn)
        except BaseException as error:  # noqa: BLE001 - CancelledError too: the claim must know
            resume = partial(progress.throw, error)
        else:
            resume = partial(progress.send, value)
        turn = await _advance_aside(progress, resume)
    return turn.value


async def _advance_aside(progress: Steps, resume: Callable[[], Call]) -> Call | StopIteration:
    try:
        return await sync_to_async(_advance)(resume)
    except asyncio.CancelledError:  # the thread goes on to a call that nobody will make
        await sync_to_async(_stop)(progress)
        raise


def _stop(progress: Steps) -> None:
    with suppress(NotBegun):
        progress.throw(NotBegun())


def _advance(resume: Callable[[], Call]) -> Call | StopIteration:
    # StopIteration cannot leave a thread through a future.
    try:
        return resume()
    except StopIteration as end:
        return end


async def _await(entry: Entry, call: Call) -> Any:
    function = call.function
    plain = function.func if isinstance(function, partial) else function
    if not inspect.iscoroutinefunction(plain):
        return await sync_to_async(_call)(entry, call)
    with body_of(entry, call.info):
        return await function()
