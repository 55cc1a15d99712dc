"""What happened to durable runs: triggers on their rows, and the effects of atomic steps.

The part of `tests.history` that only tests of runs pay for (reliability.md 2.2). `owner` of a
change is the token that gave the right to write at that moment, read by the trigger itself: the
job's claim or the run's own lock. `test_effect` is where an atomic step leaves its effect, in its
transaction.
"""

from dataclasses import dataclass
from typing import Any

from django.db import connections

from gnl_django.models import Run
from tests.history import (
    CLOCK,
    UTC_OF,
    History,
    Recorder,
    drop_trigger,
    row_trigger,
    run,
    seconds_of,
)

_TYPES = {
    "postgresql": ("bigserial PRIMARY KEY", "bigint", "text", "text", "timestamptz"),
    "mysql": (
        "bigint AUTO_INCREMENT PRIMARY KEY", "bigint", "varchar(255)", "longtext", "datetime(6)",
    ),
    "sqlite": ("integer PRIMARY KEY AUTOINCREMENT", "integer", "text", "text", "text"),
}  # fmt: skip
_NUMBER = {"postgresql": "bigint", "mysql": "unsigned", "sqlite": "integer"}
_KEY = {"postgresql": "key", "mysql": "`key`", "sqlite": "key"}
_RUN = "(SELECT r.run_id FROM gnl_django_run r WHERE r.id = {any}.run_id)"
_OWNER = (
    "(SELECT CASE WHEN r.run_id LIKE 'job:%' THEN (SELECT j.claim_token FROM gnl_django_job j "
    "WHERE j.id = CAST(substr(r.run_id, 5) AS <number>)) ELSE r.lock_token END "
    "FROM gnl_django_run r WHERE r.id = {any}.run_id)"
)
#: Column -> its type (an index into _TYPES), its source in gnl_django_step and in gnl_django_run.
_COLUMNS: dict[str, tuple[int, str, str]] = {
    "run": (2, _RUN, "{any}.run_id"),
    "step": (2, "{any}.<key>", "NULL"),
    "mode": (2, "{any}.mode", "NULL"),
    "ordinal": (1, "{any}.ordinal", "NULL"),
    "attempt": (1, "{any}.attempt", "{any}.entries"),
    "old_state": (2, "{old}.state", "{old}.state"),
    "new_state": (2, "{new}.state", "{new}.state"),
    "old_token": (2, "{old}.claim_token", "{old}.lock_token"),
    "new_token": (2, "{new}.claim_token", "{new}.lock_token"),
    "old_value": (3, "{old}.output", "{old}.input_hash"),
    "new_value": (3, "{new}.output", "{new}.input_hash"),
    "owner": (2, _OWNER, "NULL"),
}
STEP, RUN = "gnl_django_step", "gnl_django_run"
_AUDITED = {STEP: 1, RUN: 2}
OPS = ("INSERT", "UPDATE", "DELETE")


@dataclass(frozen=True, slots=True)
class RunChange:
    """One committed change of a run or a step; `value` is a step's output, a run's input hash."""

    seq: int
    table: str
    op: str
    run: str
    step: str | None
    mode: str | None
    ordinal: int | None
    attempt: int
    old_state: str | None
    new_state: str | None
    old_token: str | None
    new_token: str | None
    old_value: str | None
    new_value: str | None
    owner: str | None
    db: float


def install_run_audit(using: str = "default") -> None:
    """Create the audit of runs with its triggers, and the table of effects."""
    vendor = connections[using].vendor
    types = _TYPES[vendor]
    columns = ", ".join(f"{name} {types[source[0]]}" for name, source in _COLUMNS.items())
    run(
        using,
        f"CREATE TABLE gnl_run_audit (seq {types[0]}, tbl {types[2]}, op {types[2]}, {columns}, "
        f"db {types[4]})",
        f"CREATE TABLE test_effect (id {types[0]}, run {types[2]}, step {types[2]})",
    )
    for table, source in _AUDITED.items():
        for op in OPS:
            run(using, *_trigger(vendor, table, source, op))


def _trigger(vendor: str, table: str, source: int, op: str) -> list[str]:
    old, new = ("OLD" if op != "INSERT" else ""), ("NEW" if op != "DELETE" else "")
    values = [f"'{table}'", f"'{op}'"]
    for columns in _COLUMNS.values():
        text = columns[source]
        missing = ("{old}" in text and not old) or ("{new}" in text and not new)
        value = "NULL" if missing else text.format(old=old, new=new, any=new or old)
        values.append(value.replace("<key>", _KEY[vendor]).replace("<number>", _NUMBER[vendor]))
    insert = (
        f"INSERT INTO gnl_run_audit (tbl, op, {', '.join(_COLUMNS)}, db) "
        f"VALUES ({', '.join(values)}, {CLOCK[vendor]})"
    )
    return row_trigger(vendor, _name(table, op), table, f"AFTER {op}", insert)


def _name(table: str, op: str) -> str:
    return f"gnl_run_audit_{table[11:]}_{op.lower()}"


def remove_run_audit(using: str = "default") -> None:
    """Take it all away; without an error when there is nothing."""
    vendor = connections[using].vendor
    for table in _AUDITED:
        for op in OPS:
            run(using, drop_trigger(vendor, _name(table, op), table))
    run(using, "DROP TABLE IF EXISTS gnl_run_audit", "DROP TABLE IF EXISTS test_effect")


def read_run_audit(using: str = "default") -> list[RunChange]:
    """Return the audit; within one row it is in commit order."""
    utc = UTC_OF[connections[using].vendor]
    with connections[using].cursor() as cursor:
        cursor.execute(
            f"SELECT seq, tbl, op, {', '.join(_COLUMNS)}, db{utc} FROM gnl_run_audit ORDER BY seq"
        )
        return [RunChange(*row[:-1], db=seconds_of(row[-1]) or 0.0) for row in cursor.fetchall()]


def read_effects(using: str = "default") -> list[tuple[str, str]]:
    """Return (run, step) of each effect of an atomic step."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT run, step FROM test_effect ORDER BY id")
        return [(row[0], row[1]) for row in cursor.fetchall()]


def leave_effect(run_id: str, step: str, using: str = "default") -> None:
    """Be the effect of an atomic step: a row, in the caller's transaction."""
    with connections[using].cursor() as cursor:
        cursor.execute("INSERT INTO test_effect (run, step) VALUES (%s, %s)", [run_id, step])


class RunRecorder(Recorder):
    """A recorder that knows of runs too."""

    def history(self, **changes: Any) -> History:
        """Return the whole history with its rows as they are now."""
        known = super().history(**changes)
        known.run_audit = read_run_audit(self.using)
        known.run_effects = read_effects(self.using)
        known.runs = {row["run_id"]: row for row in Run.objects.using(self.using).values()}
        return known
