"""The journal on MySQL and SQLite: lock the rights, look, write, in one short transaction."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gnl_django.core.fields import to_database
from gnl_django.runs.journal.base import (
    LOST,
    Lock,
    NewRun,
    NewStep,
    RunRow,
    Written,
    has_other_input,
)
from gnl_django.runs.journal.shared import RUN_COLUMNS, SqlJournal, hit, run_row
from gnl_django.runs.rights import Right


class RowwiseJournal(SqlJournal):
    """The journal of a MySQL, MariaDB or SQLite alias."""

    def __init__(self, using: str) -> None:
        super().__init__(using)
        self.KEY = self.connection.ops.quote_name("key")

    def _held(self, rights: Sequence[Right]) -> bool | None:
        """Lock the rights' rows; None when one is lost, else whether its owner is to stop."""
        cancel = False
        for right in rights:
            found = self.rows(
                f"SELECT {right.cancel} FROM {right.table} WHERE id = %(id)s "
                f"AND {right.token_column} = %(token)s AND state = %(state)s{self.words.share}",
                {"id": right.id, "token": right.token, "state": right.state},
            )
            if not found:
                return None
            cancel = cancel or bool(found[0][0])
        return cancel

    def guarded(
        self,
        text: str,
        params: dict[str, Any],
        rights: Sequence[Right],
        *,
        before: str = "",
        after: str = "",
    ) -> Written:
        """One transaction: the rights, then the UPDATE."""

        def work() -> Written:
            cancel = self._held(rights)
            if cancel is None:
                return LOST
            changed = self.change(text, params)
            hit(before)
            return Written(held=True, cancel=cancel, changed=changed == 1)

        written = self.own(work)
        hit(after)
        return written

    def insert_step(
        self, step: NewStep, rights: Sequence[Right], *, before: str, after: str
    ) -> Written:
        """One transaction: the rights, then the INSERT."""
        done = step.output is not None
        text = (
            f"{self.words.insert} INTO gnl_django_step (run_id, {self.KEY}, ordinal, mode, state, "
            "output, claim_token, claimed_at, claim_ttl, attempt, started_at, finished_at, error) "
            "VALUES (%(run)s, %(key)s, %(ordinal)s, %(mode)s, %(state)s, %(output)s, %(token)s, "
            f"{'NULL' if done else '{now}'}, %(ttl)s, %(attempt)s, {self.after('began')}, "
            f"{'{now}' if done else 'NULL'}, ''){self.words.unless_present}"
        )
        params = {
            "run": step.run_pk,
            "key": step.key,
            "ordinal": step.ordinal,
            "mode": step.mode,
            "state": "done" if done else "claimed",
            "output": step.output,
            "token": step.claim_token,
            "ttl": step.claim_ttl,
            "attempt": step.attempt,
            "began": self.words.duration(-step.took),
        }

        def work() -> Written:
            cancel = self._held(rights)
            if cancel is None:
                return LOST
            with self.execute(text, params) as cursor:
                new, pk = cursor.rowcount == 1, cursor.lastrowid
            hit(before)
            return Written(held=True, cancel=cancel, changed=new, pk=pk if new else None)

        written = self.own(work)
        hit(after)
        return written

    def enter(self, run: NewRun, rights: Sequence[Right], lock: Lock | None) -> RunRow | None:
        """Insert if absent, lock, decide, change."""

        def work() -> RunRow | None:
            if self._held(rights) is None:
                return None
            self._make(run)
            found = self.row(run.run_id, lock=self.words.update)
            assert found is not None  # noqa: S101 - inserted or there before
            row, expired_for, holder, cancel = found
            if row.state not in {"running", "failed"}:
                return row
            if lock is not None and holder not in {None, lock.holder} and expired_for < 0:
                return replace(row, busy_for=-expired_for)
            if has_other_input(row, run) and not cancel:
                return row
            return self._enter(row, run, lock, cancel=cancel)

        return self.own(work)

    def _make(self, run: NewRun) -> None:
        self.change(
            f"{self.words.insert} INTO gnl_django_run (run_id, org, state, strict, input, "
            "input_hash, scheduled_for, entries, cancel_reason, note, error_class, error, "
            "created_at, updated_at) VALUES (%(run_id)s, %(org)s, 'running', %(strict)s, %(input)s,"
            " %(digest)s, %(scheduled_for)s, 0, '', '', '', '', {now}, {now})"
            f"{self.words.unless_present}",
            {
                "run_id": run.run_id,
                "org": run.org,
                "strict": run.strict,
                "input": run.input,
                "digest": run.input_hash,
                "scheduled_for": to_database(run.scheduled_for, self.connection.vendor),
            },
        )

    def _enter(self, row: RunRow, run: NewRun, lock: Lock | None, *, cancel: bool) -> RunRow:
        if cancel:
            self.change(
                "UPDATE gnl_django_run SET state='canceled', finished_at={now}, updated_at={now}, "
                "lock_token=NULL, lock_holder=NULL, lock_expires_at=NULL WHERE id = %(run)s "
                "AND state IN ('running', 'failed')",
                {"run": row.pk},
            )
        else:
            expires = "NULL" if lock is None else self.after("ttl")
            given = "input=%(input)s, input_hash=%(digest)s, " if row.input_hash is None else ""
            self.change(
                f"UPDATE gnl_django_run SET {given}state='running', finished_at=NULL, "
                "entries=entries+1, error_class='', error='', updated_at={now}, "
                f"lock_token=%(token)s, lock_holder=%(holder)s, lock_expires_at={expires} "
                "WHERE id = %(run)s AND state IN ('running', 'failed')",
                {
                    "run": row.pk,
                    "input": run.input,
                    "digest": run.input_hash,
                    "token": lock and lock.token,
                    "holder": lock and lock.holder,
                    "ttl": lock and self.words.duration(lock.ttl),
                },
            )
        text = f"SELECT {RUN_COLUMNS} FROM gnl_django_run WHERE id = %(run)s"
        return run_row(self.rows(text, {"run": row.pk})[0], entered=not cancel)


def build(using: str) -> RowwiseJournal:
    """Return the journal of alias `using`."""
    return RowwiseJournal(using)
