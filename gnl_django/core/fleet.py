"""Rows of running processes: written by their heartbeats, read by people and by health checks.

Every statement about Process stands here (studio.md 2.1). A heartbeat never waits for a row: the
thread that writes it also renews leases. What a process is, alive or lost, follows from times of
the database's clock alone.
"""

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Any

from django.db import connections

from gnl_django import __version__, conf
from gnl_django.core import clock
from gnl_django.core.db import now, own_transaction, read_committed
from gnl_django.core.models import Process
from gnl_django.core.payloads import clean_text, dump
from gnl_django.core.statements import Statements

#: Seconds without a heartbeat after which a process is no longer alive, or lost.
ALIVE, LATE = 15.0, 60.0
#: The same in heartbeats, when GNL["HEARTBEAT"] is above 5.
ALIVE_BEATS, LATE_BEATS = 3, 12
#: Seconds for which a command of an operator holds.
COMMAND_HOLDS = 60.0
KEPT = timedelta(hours=24)
BATCH = 500

_AGO = {
    "postgresql": "({now} - %s::float8 * interval '1 second')",
    "mysql": "({now} - INTERVAL %s MICROSECOND)",
    "sqlite": "(strftime('%%Y-%%m-%%d %%H:%%M:%%f', {base}, %s) || '000')",
}


class State(StrEnum):
    """What a process is, by its times."""

    ALIVE = "alive"
    LATE = "late"
    LOST = "lost"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Numbers:
    """What a process says of itself with each heartbeat; ages are seconds before now."""

    kinds: Sequence[str] = ()
    concurrency: int = 0
    active: int = 0
    stuck: int = 0
    draining: bool = False
    claimed: int = 0
    completed: int = 0
    failed: int = 0
    rss_kib: int | None = None
    last_error: str = ""
    oldest_age: float | None = None
    pass_age: float | None = None
    error_age: float | None = None


@dataclass(frozen=True)
class Answer:
    """What a heartbeat found in its row: a command, and whether that is too old to be obeyed.

    `locked`: another transaction holds the row, nothing was written. `gone`: there is no row.
    """

    command: str = ""
    stale: bool = False
    locked: bool = False
    gone: bool = False


def interval() -> float:
    """Return the seconds between two heartbeats."""
    return conf.settings().HEARTBEAT


def alive_seconds() -> float:
    """Return the age of the last heartbeat up to which a process is alive."""
    return ALIVE if interval() <= 5 else ALIVE_BEATS * interval()


def late_seconds() -> float:
    """Return the age of the last heartbeat beyond which a process is lost."""
    return LATE if interval() <= 5 else LATE_BEATS * interval()


def state_of(process: Process, at: datetime) -> State:
    """Return what `process` is at the database's instant `at` (core.db.now); studio.md 2.1."""
    if process.stopped_at is not None:
        return State.STOPPED
    age = (at - process.seen_at).total_seconds()
    if age <= alive_seconds():
        return State.ALIVE
    return State.LATE if age <= late_seconds() else State.LOST


def living(using: str, *, role: str = "worker", at: datetime | None = None) -> list[Process]:
    """Return the alive and late processes of `role` by name, at most 500.

    at: the database's present instant, if it has been read already.
    """
    since = (at or now(using)) - timedelta(seconds=late_seconds())
    found = Process.objects.using(using).filter(
        role=role, stopped_at__isnull=True, seen_at__gte=since
    )
    return list(found.order_by("name")[:BATCH])


# an operator's commands


def drain_worker(name: str, *, by: str = "", using: str | None = None) -> bool:
    """Ask a process to claim nothing more; it obeys at its next heartbeat (studio.md 2.8, R54).

    name: as in Process.name and Job.worker. by: who asks, up to 150 characters. using: database
    alias (None: GNL["DATABASE"]). Returns False when there is no such process, or it is stopped or
    lost. What it does not see within 60 seconds is void.
    """
    return _command(name, "drain", by, using)


def resume_worker(name: str, *, by: str = "", using: str | None = None) -> bool:
    """Undo `drain_worker`; arguments and answer are the same (studio.md 2.8, R54)."""
    return _command(name, "resume", by, using)


def _command(name: str, command: str, by: str, using: str | None) -> bool:
    alias = using or conf.settings().DATABASE
    connection = connections[alias]
    text = (
        "UPDATE gnl_django_process SET command=%s, command_by=%s, command_at={now} "
        f"WHERE name=%s AND stopped_at IS NULL AND seen_at >= {_AGO[connection.vendor]}"
    )
    who = clean_text(by, 600)[:150]
    params = [command, who, name, _age(connection.vendor, late_seconds())]

    statements = Statements(alias)
    return statements.own(lambda: statements.change(text, params)) > 0


# a process's own row


def enter(using: str, name: str, role: str, queues: Sequence[str], numbers: Numbers) -> int:
    """Insert the row of this process; return its id, also when a lost answer hid the insert."""
    vendor = connections[using].vendor
    columns: dict[str, tuple[str, Any]] = {
        "name": ("%s", name),
        "role": ("%s", role),
        "host": ("%s", socket.gethostname()[:255]),
        "pid": ("%s", os.getpid()),
        "version": ("%s", __version__),
        "release": ("%s", clean_text(conf.settings().RELEASE, 256)[:64]),
        "started_at": ("{now}", None),
        "queues": ("%s", dump(list(queues))),
        "command": ("''", None),
        "command_by": ("''", None),
        **_columns(numbers, vendor),
    }
    names = ", ".join(connections[using].ops.quote_name(name) for name in columns)
    text = (
        f"INSERT INTO gnl_django_process ({names}) "
        f"VALUES ({', '.join(value for value, _ in columns.values())}) "
    )
    params = _params(columns)
    if vendor == "mysql":
        text += "ON DUPLICATE KEY UPDATE id = LAST_INSERT_ID(id)"
        with connections[using].cursor() as cursor:
            cursor.execute(clock.render(text, vendor), params)
            return int(cursor.lastrowid)
    text += "ON CONFLICT (name) DO NOTHING RETURNING id"
    again = "SELECT id FROM gnl_django_process WHERE name=%s"
    work = partial(Statements(using).rows, text, params)
    found = read_committed(connections[using], work) or Statements(using).rows(again, [name])
    return int(found[0][0])


def beat(using: str, process_id: int, numbers: Numbers) -> Answer:
    """Write the numbers and bring back the command: one statement by primary key."""
    columns = _columns(numbers, connections[using].vendor)
    return _write(using, process_id, columns)


def clear(using: str, process_id: int, answer: Answer, *, draining: bool) -> None:
    """Take away the command that was obeyed or too old, unless another has come meanwhile."""
    vendor = connections[using].vendor
    condition = "command=%s"
    params: list[Any] = [answer.command]
    if answer.stale:
        condition += f" AND command_at < {_AGO[vendor]}"
        params.append(_age(vendor, COMMAND_HOLDS))
    columns = {
        "command": ("''", None),
        "command_by": ("''", None),
        "command_at": ("NULL", None),
        "draining": ("%s", draining),
    }
    _write(using, process_id, columns, condition, params)


def leave(using: str, process_id: int, numbers: Numbers) -> bool:
    """Note an orderly end; return False when another transaction holds the row."""
    columns = _columns(numbers, connections[using].vendor)
    return not _write(using, process_id, {**columns, "stopped_at": ("{now}", None)}).locked


def prune(using: str) -> int:
    """Delete rows of processes that ended or were last seen over 24 hours ago; return how many.

    Called by heartbeats once an hour; one read when there is nothing to delete.
    """
    vendor = connections[using].vendor
    old = (
        "SELECT id FROM gnl_django_process WHERE coalesce(stopped_at, seen_at) "
        f"< {_AGO[vendor]} ORDER BY id LIMIT {BATCH}"
    )
    params = [_age(vendor, KEPT.total_seconds())]
    if not Statements(using).rows(old, params):
        return 0
    lock = "" if vendor == "sqlite" else " FOR UPDATE SKIP LOCKED"
    with own_transaction(connections[using]):
        ids = [row[0] for row in Statements(using).rows(f"{old}{lock}", params)]
        if ids:
            marks = ", ".join(["%s"] * len(ids))
            Statements(using).change(f"DELETE FROM gnl_django_process WHERE id IN ({marks})", ids)
    return len(ids)


def _columns(numbers: Numbers, vendor: str) -> dict[str, tuple[str, Any]]:
    """Return column -> (SQL, parameter or None) of a heartbeat."""
    ago = _AGO[vendor]
    ages = {
        "oldest_started_at": numbers.oldest_age,
        "last_pass_at": numbers.pass_age,
        "last_error_at": numbers.error_age,
    }
    plain = {
        "kinds": dump(sorted(numbers.kinds)),
        "concurrency": numbers.concurrency,
        "active": numbers.active,
        "stuck": numbers.stuck,
        "draining": numbers.draining,
        "claimed": numbers.claimed,
        "completed": numbers.completed,
        "failed": numbers.failed,
        "last_error": clean_text(numbers.last_error, 1_020)[:255],
    }
    return {
        "seen_at": ("{now}", None),
        **{name: ("%s", value) for name, value in plain.items()},
        "rss_kib": ("NULL", None) if numbers.rss_kib is None else ("%s", numbers.rss_kib),
        **{
            name: ("NULL", None) if age is None else (ago, _age(vendor, age))
            for name, age in ages.items()
        },
    }


def _write(
    using: str,
    process_id: int,
    columns: Mapping[str, tuple[str, Any]],
    condition: str = "",
    extra: Sequence[Any] = (),
) -> Answer:
    """Change the row by primary key if nobody holds it; an open transaction is not waited for."""
    connection = connections[using]
    vendor = connection.vendor
    ago, holds = _AGO[vendor], _age(vendor, COMMAND_HOLDS)
    where = f"id=%s AND {condition}" if condition else "id=%s"
    key = [process_id, *extra]
    sets = ", ".join(f"{name}={value}" for name, (value, _) in columns.items())
    params = _params(columns)
    told = f"command, coalesce(command_at < {ago}, false)"
    found: list[Any]
    if vendor == "postgresql":
        text = (
            f"WITH mine AS MATERIALIZED (SELECT id FROM gnl_django_process WHERE {where} "
            f"FOR NO KEY UPDATE SKIP LOCKED) UPDATE gnl_django_process SET {sets} "
            f"WHERE id = ANY (ARRAY(SELECT id FROM mine)) RETURNING {told}"
        )
        work = partial(Statements(using).rows, text, [*key, *params, holds])
        found = read_committed(connection, work)
    elif vendor == "sqlite":
        text = f"UPDATE gnl_django_process SET {sets} WHERE {where} RETURNING {told}"
        found = Statements(using).rows(text, [*params, *key, holds])
    else:
        with own_transaction(connection):
            look = f"SELECT {told} FROM gnl_django_process WHERE {where} FOR UPDATE SKIP LOCKED"
            found = Statements(using).rows(look, [holds, *key])
            if found:
                text = f"UPDATE gnl_django_process SET {sets} WHERE id=%s"
                Statements(using).change(text, [*params, process_id])
    if found:
        return Answer(found[0][0], bool(found[0][1]))
    if Statements(using).rows("SELECT 1 FROM gnl_django_process WHERE id=%s", [process_id]):
        return Answer(locked=True)
    return Answer(gone=True)


def _params(columns: Mapping[str, tuple[str, Any]]) -> list[Any]:
    return [value for text, value in columns.values() if "%s" in text]


def _age(vendor: str, seconds: float) -> float | int | str:
    """Return the parameter of `_AGO`."""
    if vendor == "sqlite":
        return f"-{seconds:.6f} seconds"
    return round(seconds * 1_000_000) if vendor == "mysql" else seconds
