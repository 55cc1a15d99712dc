"""A Worker's options: defaults from the settings, checks, and the worker's full name."""

import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from os import getpid

from gnl_django import conf
from gnl_django.core import leases
from gnl_django.core.backoff import seconds
from gnl_django.errors import UnknownKind
from gnl_django.queue import options as opt

WORKER_NAME_MAX = 100
FIRST_NAME_MAX = 40
CONCURRENCY_MAX = 10_000


@dataclass(frozen=True)
class WorkerOptions:
    """Checked options; times in seconds."""

    queues: tuple[str, ...]
    concurrency: int
    ttl: float
    poll: float
    max_poll: float
    max_hold: float | None
    max_attempts: int | None
    #: The kinds to claim, asked anew in each pass: those registered later count too.
    kinds: Callable[[], tuple[str, ...]]
    name: str
    using: str


def check_options(
    queues: Sequence[str],
    *,
    concurrency: int | None,
    ttl: float | None,
    poll: float | None,
    max_poll: float | None,
    backoff: bool,
    max_hold: float | timedelta | None,
    max_attempts: int | None,
    kinds: Sequence[str] | None,
    name: str | None,
    using: str | None,
) -> WorkerOptions:
    """Return the options of a Worker. Raises ValueError, TypeError or UnknownKind (3.5)."""
    default = conf.settings()
    first = _above_0("poll", default.POLL if poll is None else poll)
    longest = max(first, default.MAX_POLL) if max_poll is None else max_poll
    longest = _at_least("max_poll", longest, first) if backoff else first
    if max_attempts is not None:
        opt.check_integer("max_attempts", max_attempts, 1, opt.ATTEMPTS_LIMIT)
    return WorkerOptions(
        queues=_queues(queues),
        concurrency=opt.check_integer(
            "concurrency",
            default.CONCURRENCY if concurrency is None else concurrency,
            1,
            CONCURRENCY_MAX,
        ),
        ttl=_at_least("ttl", default.TTL if ttl is None else ttl, leases.MIN_TTL),
        poll=first,
        max_poll=longest,
        max_hold=None if max_hold is None else _above_0("max_hold", max_hold),
        max_attempts=max_attempts,
        kinds=_kinds(kinds),
        name=_full_name(name),
        using=using or default.DATABASE,
    )


def _queues(queues: Sequence[str]) -> tuple[str, ...]:
    if isinstance(queues, str) or not queues:
        raise ValueError(f"queues: {queues!r} does not name a queue in a list")
    return tuple(opt.check_name("queue", queue, opt.QUEUE_MAX) for queue in queues)


def _kinds(names: Sequence[str] | None) -> Callable[[], tuple[str, ...]]:
    if names is None:
        return lambda: tuple(opt.kinds)
    for name in names:
        if opt.kinds.find(name) is None:
            raise UnknownKind(name)
    chosen = tuple(sorted(set(names)))
    return lambda: chosen


def _full_name(name: str | None) -> str:
    """Return `<name>/<host>/<pid>/<6 random>`, the host cut so that it fits Job.worker."""
    first = opt.check_name("name", "worker" if name is None else name, FIRST_NAME_MAX)
    last = f"{getpid()}/{secrets.token_hex(3)}"
    host = socket.gethostname()[: WORKER_NAME_MAX - len(first) - len(last) - 2]
    return f"{first}/{host}/{last}"


def _above_0(what: str, value: float | timedelta) -> float:
    if _seconds(what, value) <= 0:
        raise ValueError(f"{what}: {value!r} is not above 0 seconds")
    return seconds(value)


def _seconds(what: str, value: float | timedelta) -> float:
    try:
        return seconds(value)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{what}: {error}") from None


def _at_least(what: str, value: float, least: float) -> float:
    if _seconds(what, value) < least:
        raise ValueError(f"{what}: {value!r} is below {least} seconds")
    return seconds(value)
