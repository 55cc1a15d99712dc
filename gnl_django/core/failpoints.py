"""Fail points: named places where a test makes the process die, stop, raise or wait.

`hit("claim.committed")` is one look-up in an empty dict unless both switches are on: `FAILPOINTS`
in GNL and the environment variable GNL_FAILPOINTS. An environment variable alone must never be able
to hurt production (reliability.md 2.4).
"""

import logging
import os
import random
import re
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from gnl_django import conf

logger = logging.getLogger(__name__)

#: Every point of the floors that exist.
POINTS = frozenset(
    f"{area}.{moment}"
    for area, moments in {
        "enqueue": "begin inserted committed",
        "enqueue_many": "chunk",
        "promote": "updated committed",
        "claim": "begin selected updated committed",
        "handler": "before returned",
        "renew": "begin updated committed",
        "complete": "begin updated committed",
        "retry": "begin updated committed",
        "bury": "begin updated committed",
        "cancel": "begin updated committed",
        "release": "begin updated committed",
        "reap": "selected updated committed",
        "prune": "selected deleted",
        "bulk": "chunk",
        "step": "begin claimed effect_done journaled committed",
        "run": "final",
    }.items()
    for moment in moments.split()
)

#: Exceptions that `raise:` may name.
RAISABLE = (
    "builtins.RuntimeError",
    "builtins.OSError",
    "django.db.OperationalError",
    "django.db.InterfaceError",
)

_FORM = re.compile(
    r"(?P<name>[a-z_.]+)=(?P<action>[a-z_]+)(:(?P<detail>[^@%]+))?(@(?P<nth>\d+))?(%(?P<prob>\d+))?"
)


@dataclass
class Arm:
    """One armed point: do `action` at the `nth` hit (0: at each), with `prob` per cent."""

    name: str
    action: str
    detail: str = ""
    nth: int = 0
    prob: int = 100
    hits: int = field(default=0, compare=False)


_armed: dict[str, Arm] = {}
_hooks: dict[str, Callable[[], None]] = {}
_dice = random.Random(os.environ.get("GNL_FAILPOINT_SEED", "0"))  # noqa: S311 - tests repeat it


def armed() -> bool:
    """Tell whether any point is armed: stores then take the path that can stop half way."""
    return bool(_armed or _hooks)


def arm_from_environment() -> None:
    """Arm what GNL_FAILPOINTS names, if GNL["FAILPOINTS"] allows it; called by the commands."""
    text = os.environ.get("GNL_FAILPOINTS", "")
    if not text or not conf.settings().FAILPOINTS:
        return
    for part in filter(None, text.split(";")):
        arm = parse(part)
        _armed[arm.name] = arm


def parse(text: str) -> Arm:
    """Return the Arm of `name=action[:detail][@nth][%prob]`; ImproperlyConfigured otherwise."""
    match = _FORM.fullmatch(text.strip())
    if match is None or match["name"] not in POINTS or match["action"] not in _ACTIONS:
        raise ImproperlyConfigured(f"GNL_FAILPOINTS: {text!r} is not a fail point and an action")
    return Arm(
        name=match["name"],
        action=match["action"],
        detail=match["detail"] or "",
        nth=int(match["nth"] or 0),
        prob=int(match["prob"] or 100),
    )


def hook(name: str, call: Callable[[], None] | None) -> None:
    """For tests in this process: call `call` whenever `name` is hit; None takes it away."""
    if name not in POINTS:
        raise ValueError(f"{name!r} is not a fail point")
    if call is None:
        _hooks.pop(name, None)
    elif not conf.settings().FAILPOINTS:
        raise ImproperlyConfigured("fail points need GNL['FAILPOINTS'] = True")
    else:
        _hooks[name] = call


def hit(name: str) -> None:
    """Pass the point `name`."""
    if not _armed and not _hooks:
        return
    if (call := _hooks.get(name)) is not None:
        call()
    arm = _armed.get(name)
    if arm is None:
        return
    arm.hits += 1
    if arm.nth not in {0, arm.hits} or _dice.randrange(100) >= arm.prob:
        return
    logger.warning("Fail point %s: %s %s", name, arm.action, arm.detail)
    _ACTIONS[arm.action](arm.detail)


def _raise(detail: str) -> None:
    if detail not in RAISABLE:
        raise ImproperlyConfigured(f"fail points may raise {', '.join(RAISABLE)}, not {detail!r}")
    raise import_string(detail)("fail point")


def _stop(_: str) -> None:
    # To this thread, not to the process: only then it stands still before its next instruction.
    # A signal to the process is taken by the main thread, and meanwhile this one goes on.
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def _wait_for(fifo: str) -> None:
    # Opening a FIFO for reading waits until the test opens it for writing: a rendezvous.
    Path(fifo).read_bytes()


_ACTIONS: dict[str, Callable[[str], object]] = {
    "kill": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "stop": _stop,
    "term": lambda _: os.kill(os.getpid(), signal.SIGTERM),
    "raise": _raise,
    "exec_then_raise": _raise,
    "sleep": lambda detail: threading.Event().wait(float(detail)),
    "wait": _wait_for,
    "log": lambda _: None,
}
