"""What happened in a run, from four sources: clients, handlers, the database's triggers, the rows.

Fault tests write it and `tests.checkers` judges it (reliability.md 2.2). Logs are files opened with
O_APPEND, one `os.write` a line, so they survive the SIGKILL of their writer and many processes may
share one; the audit is written by triggers and knows of every change that was committed.
"""

import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError, connections

from gnl_django.core.db import Fault, fault_of
from gnl_django.models import Job

if TYPE_CHECKING:
    from tests.run_history import RunChange

Record = dict[str, Any]


class Log:
    """A file of JSON lines that any number of processes append to."""

    def __init__(self, path: str | Path, proc: str = "") -> None:
        self.path = Path(path)
        self.proc = proc or str(os.getpid())
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, **values: Any) -> None:
        """Append one line, whole or not at all."""
        line = json.dumps({"t": monotonic(), "proc": self.proc, **values}, ensure_ascii=True)
        os.write(self._descriptor, line.encode() + b"\n")

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._descriptor)


class ClientLog(Log):
    """The calls of one process that gives work: `invoke`, then `ok`, `fail` or `info`.

    A call whose outcome nobody can know, because the connection went while its COMMIT may have been
    under way, is `info` and never `fail`.
    """

    _numbers = count(1)

    def call(self, f: str, work: Callable[[], Any], *, value: Any = None, key: Any = None) -> Any:
        """Do `work` between its two lines; return its answer, None after an error of any sort."""
        number = f"{self.proc}-{next(self._numbers)}"
        self.write(f=f, type="invoke", call=number, key=key, value=value)
        try:
            answer = work()
        except Exception as error:  # noqa: BLE001 - the history judges, not the client
            unknown = fault_of(error) is Fault.CONNECTION
            kind = "info" if unknown else "fail"
            self.write(f=f, type=kind, call=number, key=key, error=repr(error)[:300])
            return None
        self.write(f=f, type="ok", call=number, id=answer, key=key)
        return answer


class EffectLog(Log):
    """What handlers did: `start`, `revoked`, `end`; and what workers told: `stale`, `final`."""

    def attempt(
        self, e: str, ctx: Any, *, using: str = "default", blind: bool = False, **values: Any
    ) -> None:
        """Write a line about the attempt of `ctx` with the database's clock.

        With `blind` also when the database does not answer; then `db` is None.
        """
        moment = None
        with suppress(DatabaseError) if blind else nullcontext():
            moment = database_clock(using)
        self.write(
            e=e,
            job=ctx.job_id,
            token=ctx.claim_token,
            attempt=ctx.attempt,
            kind=ctx.kind,
            org=ctx.org or "",
            queue=ctx.queue,
            db=moment,
            **values,
        )


def database_clock(using: str) -> float:
    """Return the real clock of the database in seconds since 1970, whatever a test overrides."""
    connection = connections[using]
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {CLOCK[connection.vendor]}{UTC_OF[connection.vendor]}")
        return seconds_of(cursor.fetchone()[0]) or 0.0


def seconds_of(value: datetime | str | None) -> float | None:
    """Return a UTC time of any driver as seconds since 1970."""
    if value is None:
        return None
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def read_log(path: Path) -> list[Record]:
    """Return the lines of a log, in the order in which they were written."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


# the audit

CLOCK = {
    "postgresql": "clock_timestamp()",
    "mysql": "UTC_TIMESTAMP(6)",
    "sqlite": "(strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')",
}
UTC_OF = {"postgresql": " AT TIME ZONE 'UTC'", "mysql": "", "sqlite": ""}
_TXID = {"postgresql": "txid_current()", "mysql": "CONNECTION_ID()", "sqlite": "0"}
_TYPES = {
    "postgresql": ("bigserial PRIMARY KEY", "bigint", "text", "timestamptz"),
    "mysql": ("bigint AUTO_INCREMENT PRIMARY KEY", "bigint", "varchar(64)", "datetime(6)"),
    "sqlite": ("integer PRIMARY KEY AUTOINCREMENT", "integer", "text", "text"),
}
#: Column of the audit -> its type (an index into _TYPES) and its source in each audited table.
_COLUMNS: dict[str, tuple[int, str, str]] = {
    "job": (1, "{any}.id", "{any}.job_id"),
    "old_state": (2, "{old}.state", "NULL"),
    "new_state": (2, "{new}.state", "NULL"),
    "old_token": (2, "{old}.claim_token", "NULL"),
    "new_token": (2, "{new}.claim_token", "{any}.claim_token"),
    "attempt": (1, "{any}.attempt", "{any}.number"),
    "max_attempts": (1, "{any}.max_attempts", "NULL"),
    "revivals": (1, "{any}.revivals", "{any}.revival"),
    "deferrals": (1, "{any}.deferrals", "NULL"),
    "run_at": (3, "{any}.run_at", "NULL"),
    "lease": (3, "{any}.lease_expires_at", "NULL"),
    "finished": (3, "{any}.finished_at", "{any}.finished_at"),
    "outcome": (2, "NULL", "{any}.outcome"),
}
_AUDITED = {"gnl_django_job": 1, "gnl_django_attempt": 2}
_TIMES = {name for name, source in _COLUMNS.items() if source[0] == 3} | {"db"}


@dataclass(frozen=True, slots=True)
class Change:
    """One committed change of a row; times in seconds since 1970 by the database's clock."""

    seq: int
    table: str
    op: str
    pk: int
    job: int
    old_state: str | None
    new_state: str | None
    old_token: str | None
    new_token: str | None
    attempt: int
    max_attempts: int | None
    revivals: int
    deferrals: int | None
    run_at: float | None
    lease: float | None
    finished: float | None
    outcome: str | None
    db: float
    txid: int


def install_audit(using: str = "default") -> None:
    """Create the audit's table and its AFTER triggers on every table whose rows have a life."""
    vendor = connections[using].vendor
    types = _TYPES[vendor]
    columns = ", ".join(f"{name} {types[source[0]]}" for name, source in _COLUMNS.items())
    run(
        using,
        f"CREATE TABLE gnl_audit (seq {types[0]}, tbl {types[2]}, op {types[2]}, pk {types[1]}, "
        f"{columns}, db {types[3]}, txid {types[1]})",
    )
    for table, source in _AUDITED.items():
        for op in ("INSERT", "UPDATE", "DELETE"):
            run(using, *_trigger(vendor, table, source, op))


def _trigger(vendor: str, table: str, source: int, op: str) -> list[str]:
    old, new = ("OLD" if op != "INSERT" else ""), ("NEW" if op != "DELETE" else "")
    values = [f"'{table}'", f"'{op}'", f"{new or old}.id"]
    for columns in _COLUMNS.values():
        text = columns[source]
        missing = ("{old}" in text and not old) or ("{new}" in text and not new)
        values.append("NULL" if missing else text.format(old=old, new=new, any=new or old))
    values += [CLOCK[vendor], _TXID[vendor]]
    insert = (
        f"INSERT INTO gnl_audit (tbl, op, pk, {', '.join(_COLUMNS)}, db, txid) "
        f"VALUES ({', '.join(values)})"
    )
    return row_trigger(vendor, f"gnl_audit_{table[11:]}_{op.lower()}", table, f"AFTER {op}", insert)


def row_trigger(vendor: str, name: str, table: str, moment: str, body: str) -> list[str]:
    """Return the statements that make a row trigger running the one statement `body`."""
    if vendor != "postgresql":
        text = body if vendor == "mysql" else f"BEGIN {body}; END"
        return [f"CREATE TRIGGER {name} {moment} ON {table} FOR EACH ROW {text}"]
    answer = "NULL" if moment.startswith("AFTER") else "coalesce(NEW, OLD)"
    return [
        f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN {body}; RETURN {answer}; END $$",
        f"CREATE TRIGGER {name} {moment} ON {table} FOR EACH ROW EXECUTE FUNCTION {name}()",
    ]


def drop_trigger(vendor: str, name: str, table: str) -> str:
    """Return the statement that takes a row trigger away."""
    if vendor == "postgresql":
        return f"DROP FUNCTION IF EXISTS {name}() CASCADE"
    return f"DROP TRIGGER IF EXISTS {name}"


def remove_audit(using: str = "default") -> None:
    """Take the audit away; without an error when there is none."""
    vendor = connections[using].vendor
    for table in _AUDITED:
        for op in ("insert", "update", "delete"):
            run(using, drop_trigger(vendor, f"gnl_audit_{table[11:]}_{op}", table))
    run(using, "DROP TABLE IF EXISTS gnl_audit")


def run(using: str, *statements: str) -> None:
    """Send statements without parameters, each a transaction of its own."""
    for statement in statements:
        with connections[using].cursor() as cursor:
            cursor.execute(statement)


def read_audit(using: str = "default", after: int = 0) -> list[Change]:
    """Return the audit from `seq` above `after` on; within one row it is in commit order."""
    utc = UTC_OF[connections[using].vendor]
    names = ["seq", "tbl", "op", "pk", *_COLUMNS, "db", "txid"]
    chosen = [f"{name}{utc}" if name in _TIMES else name for name in names]
    with connections[using].cursor() as cursor:
        cursor.execute(
            f"SELECT {', '.join(chosen)} FROM gnl_audit WHERE seq > %s ORDER BY seq", [after]
        )
        rows = cursor.fetchall()
    return [
        Change(*[
            seconds_of(value) if name in _TIMES else value
            for name, value in zip(names, row, strict=True)
        ])
        for row in rows
    ]  # fmt: skip


# all of it


@dataclass
class History:
    """Everything the checkers look at. Lists are in time order.

    `killed`: processes that had no chance to tell what they did last. `stopped`: those that were
    frozen. `faulted`: any fault at all was injected. `cut`: connections were lost, so that somebody
    may not know what he did. `bound`: seconds within which all had to be final after `quiet_at`
    (database clock), None when nobody asks. `slack`: seconds allowed to a busy machine in rules
    about time. `lag`: seconds within which every transaction commits: the audit notes a change when
    it is made, others see it then. `vendor`: of the database.
    """

    client: list[Record] = field(default_factory=list)
    effects: list[Record] = field(default_factory=list)
    audit: list[Change] = field(default_factory=list)
    rows: dict[int, Record] = field(default_factory=dict)
    #: Of tests about durable runs (tests.run_history): changes, effects of atomic steps, rows.
    run_audit: "list[RunChange]" = field(default_factory=list)
    run_effects: list[tuple[str, str]] = field(default_factory=list)
    runs: dict[str, Record] = field(default_factory=dict)
    killed: set[str] = field(default_factory=set)
    stopped: set[str] = field(default_factory=set)
    faulted: bool = False
    cut: bool = False
    quiet_at: float | None = None
    bound: float | None = None
    ttl: float = 30.0
    slack: float = 5.0
    lag: float = 2.0
    vendor: str = ""

    def of_job(self, table: str = "gnl_django_job") -> dict[int, list[Change]]:
        """Return the audit of one table by job."""
        found: dict[int, list[Change]] = {}
        for change in self.audit:
            if change.table == table:
                found.setdefault(change.job, []).append(change)
        return found

    def outcomes(self) -> dict[tuple[int, str], str]:
        """Return the outcome of each recorded attempt by (job, token)."""
        return {
            (change.job, str(change.new_token)): str(change.outcome)
            for change in self.audit
            if change.table == "gnl_django_attempt" and change.op == "INSERT"
        }

    def told(self, e: str) -> list[Record]:
        """Return the effect lines of one sort."""
        return [record for record in self.effects if record["e"] == e]

    def around(self, jobs: Iterable[int], runs: Iterable[str] = (), most: int = 10) -> list[str]:
        """Return the last `most` things known of some jobs and runs, as lines."""
        wanted, named = set(jobs), set(runs)
        lines = [
            (change.db, f"audit {change.seq} {change.op} job {change.job} {change.old_state}->"
             f"{change.new_state} token {short(change.old_token)}->{short(change.new_token)} "
             f"attempt {change.attempt} lease {change.lease} {change.outcome or ''}")
            for change in self.audit
            if change.job in wanted
        ]  # fmt: skip
        lines += [
            (record.get("db") or 0.0, f"effect {json.dumps(record)}")
            for record in self.effects
            if record.get("job") in wanted or record.get("run") in named
        ]
        lines += [
            (change.db, f"run audit {change.seq} {change.op} {change.run} {change.step or ''} "
             f"{change.old_state}->{change.new_state} by {short(change.owner)}")
            for change in self.run_audit
            if change.run in named
        ]  # fmt: skip
        return [f"{at:.6f} {text}" for at, text in sorted(lines)][-most:]


def short(token: str | None) -> str:
    """Return the beginning of a token."""
    return "-" if token is None else token[:6]


class Recorder:
    """The files and the table of one run; `history()` reads them all.

    Its directory is known to child processes by the environment variable GNL_TEST_HISTORY.
    """

    def __init__(self, directory: Path, using: str = "default") -> None:
        self.directory = directory
        self.using = using
        self.client = ClientLog(directory / "client", "test")
        self.known = History()
        self._lock = threading.Lock()

    def history(self, **changes: Any) -> History:
        """Return the whole history with its rows as they are now."""
        for name, value in changes.items():
            setattr(self.known, name, value)
        self.known.vendor = connections[self.using].vendor
        self.known.client = read_log(self.directory / "client")
        self.known.effects = read_log(self.directory / "effects")
        self.known.audit = read_audit(self.using)
        self.known.rows = {row["id"]: row for row in Job.objects.using(self.using).values()}
        return self.known


def marks_of(value: Any) -> Sequence[Mapping[str, Any]]:
    """Return the items of a client call: one for enqueue, many for enqueue_many."""
    return value if isinstance(value, list) else [value]
