"""What all databases do with the same statements, over the vendor's `guarded` and `insert_step`.

`guarded` runs one UPDATE while the rights hold; everything about a step's claim is such an UPDATE
by id, token and from-state (runs.md R17-R20).
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from gnl_django.core import failpoints
from gnl_django.core.db import retrying
from gnl_django.runs.journal.base import PAGE, Journal, NewStep, Recorded, RunRow, Written
from gnl_django.runs.journal.words import WORDS, Words
from gnl_django.runs.rights import Right

T = TypeVar("T")

STEP_COLUMNS = "id, key, ordinal, state, output, claim_token, claim_ttl"
RUN_COLUMNS = "id, state, strict, org, input, input_hash, entries, result, cancel_reason"


class SqlJournal(Journal):
    """A journal in a database."""

    words: Words
    #: The name `key` is a reserved word of MySQL.
    KEY = "key"

    def __init__(self, using: str) -> None:
        super().__init__(using)
        self.words = WORDS[self.connection.vendor]

    @abstractmethod
    def guarded(
        self,
        text: str,
        params: dict[str, Any],
        rights: Sequence[Right],
        *,
        before: str = "",
        after: str = "",
    ) -> Written:
        """Run an UPDATE that ends in a WHERE while the rights hold, in one transaction.

        `before` and `after` name fail points on either side of the COMMIT.
        """

    @abstractmethod
    def insert_step(
        self, step: NewStep, rights: Sequence[Right], *, before: str, after: str
    ) -> Written:
        """Insert a step while the rights hold; `changed` is False when its key is there."""

    def after(self, name: str) -> str:
        """Return the present instant plus the parameter `name`, made by `words.duration`."""
        return self.words.after.format(name)

    def age(self, column: str) -> str:
        """Return the seconds since `column`."""
        return self.words.age.format(column)

    def row(self, run_id: str, *, lock: str = "") -> tuple[RunRow, float, str | None, bool] | None:
        """Return a run as it is, its lock's age since its end and holder, whether it shall stop."""
        found = self.rows(
            f"SELECT {RUN_COLUMNS}, {self.age('lock_expires_at')}, lock_holder, "
            f"cancel_requested_at IS NOT NULL FROM gnl_django_run WHERE run_id = %(run_id)s{lock}",
            {"run_id": run_id},
        )
        if not found:
            return None
        *columns, age, holder, cancel = found[0]
        run = run_row(columns, entered=False)
        return run, 0.0 if age is None else float(age), holder, bool(cancel)

    # reading

    def has(self, run_pk: int) -> bool:
        """One read by primary key."""
        return bool(self.rows("SELECT 1 FROM gnl_django_run WHERE id = %(run)s", {"run": run_pk}))

    def steps(self, run_pk: int, after: tuple[int, int]) -> list[Recorded]:
        """One read along the index (run, ordinal)."""
        found = self.rows(
            f"SELECT {self._step_columns()} FROM gnl_django_step WHERE run_id = %(run)s "
            "AND ordinal >= %(ordinal)s AND (ordinal > %(ordinal)s OR id > %(id)s) "
            f"ORDER BY ordinal, id LIMIT {PAGE}",
            {"run": run_pk, "ordinal": after[0], "id": after[1]},
        )
        return [Recorded(*row) for row in found]

    def step(self, run_pk: int, key: str) -> Recorded | None:
        """One read by the unique key; with the age of its claim."""
        found = self.rows(
            f"SELECT {self._step_columns()}, coalesce({self.age('claimed_at')}, 0) "
            f"FROM gnl_django_step WHERE run_id = %(run)s AND {self.KEY} = %(key)s",
            {"run": run_pk, "key": key},
        )
        if not found:
            return None
        *columns, age = found[0]
        return replace(Recorded(*columns), age=float(age))

    def _step_columns(self) -> str:
        return STEP_COLUMNS.replace("key", self.KEY, 1)

    def input_of(self, run_pk: int) -> tuple[str | None, str | None]:
        """One read by primary key."""
        text = "SELECT input, input_hash FROM gnl_django_run WHERE id = %(run)s"
        found: tuple[str | None, str | None] = self.rows(text, {"run": run_pk})[0]
        return found

    def cancel_reason(self, rights: Sequence[Right]) -> str:
        """One read by primary key for each right."""
        for right in rights:
            text = f"SELECT {right.reason} FROM {right.table} WHERE id = %(id)s"
            for row in self.rows(text, {"id": right.id}):
                if row[0]:
                    return str(row[0])
        return ""

    # writing steps

    def add(self, step: NewStep, rights: Sequence[Right]) -> Written:
        """Insert; the fail points of a claim differ from those of a finished step."""
        if step.output is None:
            return self.insert_step(step, rights, before="", after="step.claimed")
        inside = self.connection.in_atomic_block and step.mode == "atomic"
        after = "" if inside else "step.committed"
        return self.insert_step(step, rights, before="step.journaled", after=after)

    def record(self, step_pk: int, token: str, output: str, rights: Sequence[Right]) -> Written:
        """One UPDATE; also of a failed claim, when `recover` tells that it was done."""
        return self.guarded(
            "UPDATE gnl_django_step SET state='done', output=%(output)s, finished_at={now}, "
            "error='' WHERE id = %(step)s AND coalesce(claim_token, '') = %(token)s "
            "AND state IN ('claimed', 'failed')",
            {"step": step_pk, "token": token, "output": output},
            rights,
            before="step.journaled",
            after="step.committed",
        )

    def adopt(
        self, step_pk: int, old: str | None, new: NewStep, rights: Sequence[Right]
    ) -> Written:
        """One UPDATE: compare and swap of the token."""
        return self.guarded(
            "UPDATE gnl_django_step SET state='claimed', claim_token=%(new)s, claimed_at={now}, "
            "claim_ttl=%(ttl)s, attempt=%(attempt)s, started_at={now}, error='' "
            "WHERE id = %(step)s AND coalesce(claim_token, '') = %(old)s "
            "AND state IN ('claimed', 'failed', 'released')",
            {
                "step": step_pk,
                "old": old or "",
                "new": new.claim_token,
                "ttl": new.claim_ttl,
                "attempt": new.attempt,
            },
            rights,
            after="step.claimed",
        )

    def give_up(
        self, step_pk: int, token: str, state: str, error: str, rights: Sequence[Right]
    ) -> Written:
        """One UPDATE."""
        return self.guarded(
            "UPDATE gnl_django_step SET state=%(state)s, error=%(error)s "
            "WHERE id = %(step)s AND claim_token = %(token)s AND state = 'claimed'",
            {"step": step_pk, "token": token, "state": state, "error": error},
            rights,
        )

    def freeze_input(self, run_pk: int, text: str, digest: str, rights: Sequence[Right]) -> Written:
        """One UPDATE of a run without an input."""
        return self.guarded(
            "UPDATE gnl_django_run SET input=%(input)s, input_hash=%(digest)s, updated_at={now} "
            "WHERE id = %(run)s AND input_hash IS NULL AND state = 'running'",
            {"run": run_pk, "input": text, "digest": digest},
            rights,
        )

    def extend(self, claims: Sequence[tuple[int, str]]) -> None:
        """Keep side-effect claims fresh whose bodies still run (R20)."""
        for step_pk, token in sorted(claims):
            self.change(
                "UPDATE gnl_django_step SET claimed_at={now} "
                "WHERE id = %(step)s AND claim_token = %(token)s AND state = 'claimed'",
                {"step": step_pk, "token": token},
            )

    # marks

    def claim_mark(self, key: str, value: str) -> bool:
        """One INSERT that yields to a present row; waits for one that is being inserted."""
        text = (
            f"{self.words.insert} INTO gnl_django_mark ({self.KEY}, value, created_at) "
            f"VALUES (%(key)s, %(value)s, {{now}}){self.words.unless_present}"
        )
        connection = self.connection
        return retrying(connection, lambda: self.change(text, {"key": key, "value": value})) == 1

    def mark(self, key: str, *, latest: bool = False) -> str | None:
        """One read by primary key; one that locks reads the latest version."""
        lock = self.words.share if latest else ""
        text = f"SELECT value FROM gnl_django_mark WHERE {self.KEY} = %(key)s{lock}"
        found = self.rows(text, {"key": key})
        return found[0][0] if found else None


def run_row(columns: Sequence[Any], *, entered: bool, busy_for: float = 0.0) -> RunRow:
    """Return the RunRow of a row of RUN_COLUMNS."""
    pk, state, strict, org, text, digest, entries, result, reason = columns
    return RunRow(
        pk, state, bool(strict), org, text, digest, entries, result, reason, entered, busy_for
    )


def hit(point: str) -> None:
    """Pass a fail point, if it is one."""
    if point:
        failpoints.hit(point)
