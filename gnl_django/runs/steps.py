"""What a step does, for sync and async code alike: journal first, the effect once (runs.md 4.2).

`step` is a generator: it yields each call of a user's code and is sent what that returned, so that
the two drivers in `runs.context` differ only in how they call. Between yields it does the journal's
statements, in whatever thread the driver has chosen.
"""

import inspect
import logging
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

from gnl_django.core import failpoints
from gnl_django.core.db import in_callers_block
from gnl_django.core.leases import RENEWALS_PER_TTL, new_token
from gnl_django.core.raised import text_of
from gnl_django.errors import StepInFlight, StepUnresolved
from gnl_django.runs import values
from gnl_django.runs.entry import Entry, Place, StepInfo, body_of
from gnl_django.runs.journal.base import NewStep, Recorded
from gnl_django.runs.keeper import keeping

logger = logging.getLogger(__name__)

CLAIM_TTL = 60


@dataclass(frozen=True, slots=True)
class Call:
    """A user's function, to be called by the driver: the body of a step, or its `recover`."""

    function: Callable[[], Any]
    info: StepInfo


@dataclass(frozen=True, slots=True)
class Options:
    """How a step is to be treated."""

    side_effect: bool = False
    recover: Callable[[StepInfo], Any] | None = None
    claim_ttl: int = CLAIM_TTL
    atomic: bool = False

    @property
    def mode(self) -> str:
        """Name of the mode."""
        return "atomic" if self.atomic else "side_effect" if self.side_effect else "plain"


PLAIN = Options()

Steps = Generator[Call, Any, Any]


class NotBegun(Exception):
    """Sent to a step instead of a call's outcome: the call was not made, and will not be."""


class _Taken(Exception):
    """An atomic step was recorded by somebody else: our transaction has to be undone."""


def options(
    function: Any, *, side_effect: bool, recover: Any, claim_ttl: float | None, atomic: bool
) -> Options:
    """Return checked options (runs.md 3.2). TypeError for those that exclude each other."""
    if not callable(function):
        raise TypeError(f"a step needs a function, not {type(function).__name__}")
    if side_effect and atomic:
        raise TypeError("a step is side_effect or atomic, not both")
    if (recover is not None or claim_ttl is not None) and not side_effect:
        raise TypeError("recover and claim_ttl are for side_effect steps")
    if atomic and inspect.iscoroutinefunction(function):
        raise TypeError("an atomic step cannot be a coroutine function: it is one transaction")
    if recover is not None and not callable(recover):
        raise TypeError(f"recover must be a function, not {type(recover).__name__}")
    if claim_ttl is None:
        seconds = CLAIM_TTL
    elif isinstance(claim_ttl, bool) or not isinstance(claim_ttl, int):
        raise TypeError(f"claim_ttl must be whole seconds, not {claim_ttl!r}")
    elif not 1 <= claim_ttl <= 86_400:
        raise ValueError(f"claim_ttl: {claim_ttl} is not 1 to 86,400 seconds")
    else:
        seconds = claim_ttl
    return Options(side_effect, recover, seconds, atomic) if side_effect or atomic else PLAIN


def step(entry: Entry, place: Place, body: Callable[[], Any], how: Options) -> Steps:
    """Return the recorded output of a call, or run its body and record it."""
    found = entry.recorded(place)
    if found is not None and found.state == "done":
        return values.decode(found.output)
    entry.raise_if_revoked()
    failpoints.hit("step.begin")
    if how.side_effect or found is not None:  # a claim is never ignored, however it is called now
        return (yield from _side_effect(entry, place, body, how, found))
    if how.atomic:
        return _atomic(entry, place, body)
    return (yield from _plain(entry, place, body))


def _plain(entry: Entry, place: Place, body: Callable[[], Any]) -> Steps:
    began = monotonic()
    value = yield Call(body, entry.info(place.key))
    failpoints.hit("step.effect_done")
    new = _new(entry, place, "plain", output=_encode(place, value), began=began)
    return _added(entry, place, new)


def _added(entry: Entry, place: Place, new: NewStep) -> Any:
    if entry.took(entry.journal.add(new, entry.rights)).changed:
        return values.decode(new.output)
    return _theirs(entry, place)


def _theirs(entry: Entry, place: Place) -> Any:
    """Return what another executor has recorded meanwhile; our own output is thrown away."""
    found = entry.journal.step(entry.entered.pk, place.key)
    if found is None or found.state != "done":
        raise StepUnresolved(place.key, found.state if found is not None else "gone")
    return values.decode(found.output)


def _atomic(entry: Entry, place: Place, body: Callable[[], Any]) -> Any:
    """Body, fence and row in one transaction (R16)."""
    run_pk = entry.entered.pk
    info = entry.info(place.key)

    def work() -> Any:
        if entry.journal.step(run_pk, place.key) is not None:
            return _theirs(entry, place)
        began = monotonic()
        with body_of(entry, info):
            value = body()
        failpoints.hit("step.effect_done")
        new = _new(entry, place, "atomic", output=_encode(place, value), began=began)
        if not entry.took(entry.journal.add(new, entry.rights)).changed:
            raise _Taken
        return values.decode(new.output)

    try:
        value = entry.journal.atomically(work)
    except _Taken:
        return _theirs(entry, place)
    failpoints.hit("step.committed")
    return value


def _side_effect(
    entry: Entry, place: Place, body: Callable[[], Any], how: Options, found: Recorded | None
) -> Steps:
    """Claim before the body, record after it (R17)."""
    run_pk = entry.entered.pk
    if in_callers_block(entry.journal.connection):
        raise RuntimeError(
            f"side_effect step {place.key!r} inside atomic(): its claim would be committed "
            "after the effect, or never"
        )
    if found is not None:  # what was read at entry is old by now
        found = entry.journal.step(run_pk, place.key)
    while True:
        if found is not None and found.state == "done":
            return values.decode(found.output)
        if found is None or found.state == "released":
            claim = _claim(entry, place, how, found)
        else:
            recover = _recover_of(place, found, how)
            info = entry.info(place.key)
            answer = yield Call(partial(recover, info), info)
            done, output = _answer(place, answer)
            if done:
                text = _encode(place, output)
                token = found.claim_token or ""
                written = entry.journal.record(found.pk, token, text, entry.rights)
                if entry.took(written).changed:
                    return values.decode(text)
                claim = None
            else:
                claim = _claim(entry, place, how, found)
        if claim is not None:
            _still_ours(entry, place, how, *claim)
            return (yield from _claimed(entry, place, body, how, *claim[:2]))
        # Somebody else was quicker: look again.
        found = entry.journal.step(run_pk, place.key)
        if found is None:  # then the run is gone
            raise StepUnresolved(place.key, "gone")


def _claim(
    entry: Entry, place: Place, how: Options, found: Recorded | None
) -> tuple[int, str, float] | None:
    """Write our claim before the body; None when somebody else was quicker.

    Returns the step's id, our token, and when we began to write, on our own monotonic clock.
    """
    token, sent_at = new_token(), monotonic()
    new = _new(entry, place, "side_effect", token=token, ttl=how.claim_ttl)
    if found is None:
        written = entry.took(entry.journal.add(new, entry.rights))
        return (written.pk, token, sent_at) if written.changed and written.pk is not None else None
    old = found.claim_token
    written = entry.took(entry.journal.adopt(found.pk, old, new, entry.rights))
    return (found.pk, token, sent_at) if written.changed else None


def _still_ours(
    entry: Entry, place: Place, how: Options, step_pk: int, token: str, sent_at: float
) -> None:
    """Claim again, just before the body, when we stood still meanwhile; StaleClaim if it is gone.

    A process that was frozen after its claim may wake when another has run the body.
    """
    late = monotonic() - sent_at > how.claim_ttl / RENEWALS_PER_TTL
    if late and entry.journal.shared:
        again = _new(entry, place, "side_effect", token=token, ttl=how.claim_ttl)
        if not entry.took(entry.journal.adopt(step_pk, token, again, entry.rights)).changed:
            raise entry.lost()


def _recover_of(place: Place, found: Recorded, how: Options) -> Callable[[StepInfo], Any]:
    """Return who can tell what became of an abandoned step; raise when it is not, or nobody can."""
    ttl = found.claim_ttl or 0
    if found.state == "claimed" and found.age < ttl:
        raise StepInFlight(place.key, found.age, ttl, ttl - found.age)
    if how.recover is None:
        raise StepUnresolved(place.key, found.state)
    return how.recover


def _answer(place: Place, answer: Any) -> tuple[bool, Any]:
    """Return what `recover` said; TypeError for anything but its two answers."""
    if isinstance(answer, dict):
        if answer.get("done") is True and set(answer) == {"done", "output"}:
            return True, answer["output"]
        if answer.get("done") is False and set(answer) <= {"done", "output"}:
            return False, None
    raise TypeError(
        f"recover of step {place.key!r} must return {{'done': True, 'output': ..}} "
        f"or {{'done': False}}, not {type(answer).__name__}"
    )


def _claimed(
    entry: Entry, place: Place, body: Callable[[], Any], how: Options, step_pk: int, token: str
) -> Steps:
    if entry.signal.revoked:
        _give_up(entry, step_pk, token, "released", "")
        entry.raise_if_revoked()
    with keeping(entry.journal, step_pk, token, how.claim_ttl):
        try:
            value = yield Call(body, entry.info(place.key))
        except NotBegun:
            _give_up(entry, step_pk, token, "released", "")
            raise
        except BaseException as error:
            _give_up(entry, step_pk, token, "failed", text_of(error))
            raise
    failpoints.hit("step.effect_done")
    try:
        text = _encode(place, value)
    except Exception as error:  # a user's own class may raise anything
        _give_up(entry, step_pk, token, "failed", text_of(error))
        raise
    if not entry.took(entry.journal.record(step_pk, token, text, entry.rights)).changed:
        raise entry.lost()  # somebody has taken the claim over: their record counts
    return values.decode(text)


def _give_up(entry: Entry, step_pk: int, token: str, state: str, error: str) -> None:
    """Say how our claim ended; without the right, or a database, its ttl says it (R18)."""
    try:
        written = entry.journal.give_up(step_pk, token, state, error, entry.rights)
    except Exception:
        logger.exception("Step %d of run %s stays claimed until its ttl", step_pk, entry.run_id)
        return
    if not written.held:
        entry.signal.revoke("lease-lost")


def _new(
    entry: Entry,
    place: Place,
    mode: str,
    *,
    output: str | None = None,
    began: float | None = None,
    token: str | None = None,
    ttl: int | None = None,
) -> NewStep:
    took = 0.0 if began is None else monotonic() - began
    return NewStep(
        entry.entered.pk, place.key, place.ordinal, mode, entry.attempt, took, output, token, ttl
    )


def _encode(place: Place, value: Any) -> str:
    return values.encode(f"step:{place.key}", value)
