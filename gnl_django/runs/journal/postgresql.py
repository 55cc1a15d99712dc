"""The journal on PostgreSQL: the rights and the write are one statement, one round trip.

The rights' rows are locked FOR SHARE in a materialized CTE, and the write reads from it: when a
reap commits meanwhile, the lock is taken on the new version, finds another token, and nothing is
written. `state || ''` keeps the planner from walking a partial index (see queue/store).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from gnl_django import conf
from gnl_django.core import clock, direct, failpoints
from gnl_django.core.db import retrying
from gnl_django.runs.journal.base import LOST, Lock, NewRun, NewStep, RunRow, Written
from gnl_django.runs.journal.shared import RUN_COLUMNS, SqlJournal, hit, run_row
from gnl_django.runs.rights import Right

_INSERT_STEP = """{held}, written AS (
INSERT INTO gnl_django_step (run_id, key, ordinal, mode, state, output, claim_token, claimed_at,
  claim_ttl, attempt, started_at, finished_at, error)
SELECT %(run)s::bigint, %(key)s::text, %(ordinal)s::int, %(mode)s::text, {state}, %(output)s::text,
  %(token)s::text, {claimed_at}, %(ttl)s::int, %(attempt)s::int,
  {{now}} - %(took)s::float8 * interval '1 second', {finished_at}, ''
FROM held ON CONFLICT (run_id, key) DO NOTHING RETURNING id)
SELECT (SELECT cancel FROM held), (SELECT id FROM written)
"""

_GUARDED = """{held}, written AS ({text} AND EXISTS (SELECT 1 FROM held) RETURNING id)
SELECT (SELECT cancel FROM held), (SELECT id FROM written)
"""

_ENTER = """{held}, entered AS (
INSERT INTO gnl_django_run AS r (run_id, org, state, strict, input, input_hash, scheduled_for,
  entries, lock_token, lock_holder, lock_expires_at, cancel_reason, note, error_class, error,
  created_at, updated_at)
SELECT %(run_id)s::text, %(org)s::text, 'running', %(strict)s::bool, %(input)s::text,
  %(digest)s::text, %(scheduled_for)s::timestamptz, 1, %(token)s::text, %(holder)s::text,
  {{now}} + %(ttl)s::float8 * interval '1 second', '', '', '', '', {{now}}, {{now}}
FROM held
ON CONFLICT (run_id) DO UPDATE SET
  state = CASE WHEN r.cancel_requested_at IS NULL THEN 'running' ELSE 'canceled' END,
  finished_at = CASE WHEN r.cancel_requested_at IS NOT NULL THEN {{now}} END,
  entries = r.entries + CASE WHEN r.cancel_requested_at IS NULL THEN 1 ELSE 0 END,
  input = CASE WHEN r.input_hash IS NULL AND r.cancel_requested_at IS NULL
    THEN excluded.input ELSE r.input END,
  input_hash = CASE WHEN r.input_hash IS NULL AND r.cancel_requested_at IS NULL
    THEN excluded.input_hash ELSE r.input_hash END,
  lock_token = CASE WHEN r.cancel_requested_at IS NULL THEN excluded.lock_token END,
  lock_holder = CASE WHEN r.cancel_requested_at IS NULL THEN excluded.lock_holder END,
  lock_expires_at = CASE WHEN r.cancel_requested_at IS NULL THEN excluded.lock_expires_at END,
  error_class = '', error = '', updated_at = {{now}}
WHERE r.state IN ('running', 'failed') AND (r.lock_token IS NULL
  OR r.lock_expires_at <= {{now}} OR r.lock_holder = excluded.lock_holder)
  AND (r.cancel_requested_at IS NOT NULL OR NOT r.strict OR excluded.input_hash IS NULL
    OR coalesce(r.input_hash, excluded.input_hash) = excluded.input_hash)
RETURNING {columns})
SELECT (SELECT cancel FROM held), entered.* FROM (VALUES (1)) one(x) LEFT JOIN entered ON true
"""


class PostgresJournal(SqlJournal):
    """The journal of a PostgreSQL alias."""

    def guarded(
        self,
        text: str,
        params: dict[str, Any],
        rights: Sequence[Right],
        *,
        before: str = "",
        after: str = "",
    ) -> Written:
        """One statement."""
        whole = _GUARDED.format(held=_held(tuple(map(_shape, rights))), text=text)
        return self._write(whole, {**params, **_tokens(rights)}, before, after)

    def insert_step(
        self, step: NewStep, rights: Sequence[Right], *, before: str, after: str
    ) -> Written:
        """One statement."""
        text = _insert_step(tuple(map(_shape, rights)), done=step.output is not None)
        params = {
            "run": step.run_pk,
            "key": step.key,
            "ordinal": step.ordinal,
            "mode": step.mode,
            "output": step.output,
            "token": step.claim_token,
            "ttl": step.claim_ttl,
            "attempt": step.attempt,
            "took": step.took,
        }
        return self._write(text, {**params, **_tokens(rights)}, before, after)

    def _write(self, text: str, params: dict[str, Any], before: str, after: str) -> Written:
        cancel, pk = self._once(lambda: self._send(text, params), before)[0]
        hit(after)
        if cancel is None:
            return LOST
        return Written(held=True, cancel=cancel, changed=pk is not None, pk=pk)

    def _once(self, send: Callable[[], list[Any]], before: str) -> list[Any]:
        if not before or not failpoints.armed():
            return retrying(self.connection, send)

        def work() -> list[Any]:
            answer = send()
            hit(before)
            return answer

        return self.own(work)

    def _send(self, text: str, params: dict[str, Any]) -> list[Any]:
        """Run one statement; prepared, where nobody watches: 350 us of the server, else 580."""
        query, prepare = clock.render(text, "postgresql"), conf.settings().PREPARE
        found = direct.rows(self.connection, query, params, prepare=prepare)
        return self.rows(text, params) if found is None else found

    def enter(self, run: NewRun, rights: Sequence[Right], lock: Lock | None) -> RunRow | None:
        """One statement; a second one reads why it was not entered."""
        params = {
            "run_id": run.run_id,
            "org": run.org,
            "strict": run.strict,
            "input": run.input,
            "digest": run.input_hash,
            "scheduled_for": run.scheduled_for,
            "token": lock and lock.token,
            "holder": lock and lock.holder,
            "ttl": lock and lock.ttl,
        }
        text = _enter(tuple(map(_shape, rights)))
        cancel, *columns = retrying(
            self.connection, lambda: self._send(text, {**params, **_tokens(rights)})
        )[0]
        if cancel is None:
            return None
        if columns[0] is not None:
            return run_row(columns, entered=columns[1] == "running")
        found = self.row(run.run_id)
        assert found is not None  # noqa: S101 - it stood in the way of ours
        row, expired_for, *_ = found
        if row.state in {"running", "failed"}:  # by now the lock may have ended: then soon again
            return replace(row, busy_for=max(0.0, -expired_for))
        return row


def _shape(right: Right) -> tuple[str, str, str, str]:
    return right.table, right.token_column, right.state, right.cancel


@cache
def _held(shapes: tuple[tuple[str, str, str, str], ...]) -> str:
    """Return the CTEs that lock the rights' rows; `held` is empty when one is lost."""
    parts = [
        f"f{at} AS MATERIALIZED (SELECT {cancel} AS cancel FROM {table} "
        f"WHERE id = %(right{at})s AND {column} = %(token{at})s AND state || '' = '{state}' "
        "FOR SHARE)"
        for at, (table, column, state, cancel) in enumerate(shapes)
    ]
    names = [f"f{at}" for at in range(len(shapes))]
    asked = " OR ".join(f"{name}.cancel" for name in names) or "false"
    source = f" FROM {', '.join(names)}" if names else ""
    return "WITH " + ", ".join([*parts, f"held AS MATERIALIZED (SELECT {asked} AS cancel{source})"])


def _tokens(rights: Sequence[Right]) -> dict[str, Any]:
    params: dict[str, Any] = {}
    for at, right in enumerate(rights):
        params[f"right{at}"] = right.id
        params[f"token{at}"] = right.token
    return params


@cache
def _insert_step(shapes: tuple[tuple[str, str, str, str], ...], *, done: bool) -> str:
    return _INSERT_STEP.format(
        held=_held(shapes),
        state="'done'" if done else "'claimed'",
        claimed_at="NULL::timestamptz" if done else "{now}",
        finished_at="{now}" if done else "NULL::timestamptz",
    )


@cache
def _enter(shapes: tuple[tuple[str, str, str, str], ...]) -> str:
    return _ENTER.format(held=_held(shapes), columns=RUN_COLUMNS)


def build(using: str) -> PostgresJournal:
    """Return the journal of alias `using`."""
    return PostgresJournal(using)
