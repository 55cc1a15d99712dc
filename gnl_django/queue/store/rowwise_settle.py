"""How the MySQL and the SQLite store write outcomes and renew leases.

The rows are locked first (on MySQL with SKIP LOCKED: a batch never waits for a row), then each is
changed by primary key, from-state and token. MySQL assigns from left to right, so no text here
reads a column that an earlier assignment has changed.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import TypeVar

from gnl_django.core import failpoints
from gnl_django.core.heartbeat import Verdict
from gnl_django.core.leases import Lease
from gnl_django.queue.store.base import Outcome, Points, Settled, Store
from gnl_django.runs.journal import journal_for
from gnl_django.runs.journal.owned import follow

T = TypeVar("T")

ATTEMPT = (
    "INSERT INTO gnl_django_attempt (job_id, number, revival, outcome, error_class, message, "
    "traceback, worker, claim_token, started_at, finished_at) "
    "SELECT id, attempt, revivals, %s, %s, %s, %s, coalesce(worker, ''), claim_token, "
    "coalesce(started_at, {now}), {now} "
    "FROM gnl_django_job WHERE id "
)


def marks(values: Sequence[object]) -> str:
    """Return `(%s, %s, ..)` for an IN list."""
    return "(" + ", ".join(["%s"] * len(values)) + ")"


class RowwiseSettling(Store):
    """Settle and renew by rows; the vendor fills in its words."""

    VENDOR = ""
    #: `{now}` plus a parameter made by `duration`.
    AFTER = ""
    #: Seconds from now until run_at.
    UNTIL_DUE = ""
    #: Introduces a list of pairs: `(a, b) IN (<PAIRS>(..), (..))`.
    PAIRS = ""
    QUOTE = '"'

    @staticmethod
    @abstractmethod
    def duration(seconds: float) -> object:
        """Return the parameter of AFTER for a span of `seconds`."""

    def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        """One transaction for the batch."""
        if not outcomes:
            return []
        points = Points(outcomes)
        points.hit("begin")

        def work() -> list[Settled]:
            settled = self.settle_rows(outcomes)
            points.hit("updated")
            return settled

        settled = self.own(work)
        points.hit("committed")
        return settled

    def settle_rows(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        """Write the outcomes whose row is ours, inside a transaction of ours."""
        ordered = sorted(outcomes, key=lambda outcome: outcome.id)
        mine = self._mine([(outcome.id, outcome.token) for outcome in ordered])
        done: dict[tuple[int, str], str] = {}
        successes = []
        for outcome in ordered:
            pair = (outcome.id, outcome.token)
            if pair not in mine:
                continue
            if mine[pair]:
                self._settle_canceled(outcome)
                done[pair] = "canceled"
            elif outcome.state == "succeeded":
                successes.append(outcome)
                done[pair] = "succeeded"
            else:
                self._settle_other(outcome)
                done[pair] = outcome.state
        self._settle_successes(successes)
        follow(
            journal_for(self.using),
            {
                o.run_id: done[o.id, o.token]
                for o in ordered
                if o.run_id and (o.id, o.token) in done
            },
        )
        missing = [(o.id, o.token) for o in ordered if (o.id, o.token) not in mine]
        locked = self._still_ours(missing)
        return [
            Settled(o.id, o.token, done.get((o.id, o.token)), (o.id, o.token) in locked)
            for o in ordered
        ]

    def _mine(self, pairs: Sequence[tuple[int, str]]) -> dict[tuple[int, str], bool]:
        """Lock the rows that are still ours; tell for each whether a cancel is asked for."""
        ids = [pair[0] for pair in pairs]
        text = (
            f"SELECT id, claim_token, cancel_requested_at IS NOT NULL FROM gnl_django_job "
            f"{self.BY_KEY} WHERE id IN {marks(ids)} AND state='running' ORDER BY id{self.LOCK}"
        )
        wanted = set(pairs)
        found = self.rows(text, ids)
        return {(row[0], row[1]): bool(row[2]) for row in found if (row[0], row[1]) in wanted}

    def _still_ours(self, pairs: Sequence[tuple[int, str]]) -> set[tuple[int, str]]:
        """Return those that another transaction has locked; a plain read, only where rows lock."""
        if not pairs or not self.LOCK:
            return set()
        ids = [pair[0] for pair in pairs]
        text = (
            "SELECT id, claim_token FROM gnl_django_job "
            f"WHERE id IN {marks(ids)} AND state='running'"
        )
        return {(row[0], row[1]) for row in self.rows(text, ids)} & set(pairs)

    def _settle_successes(self, outcomes: Sequence[Outcome]) -> None:
        if not outcomes:
            return
        params: list[object] = []
        columns = []
        for column in ("result", "note"):
            present = [o for o in outcomes if getattr(o, column)]
            if present:
                cases = " ".join(["WHEN %s THEN %s"] * len(present))
                other = "NULL" if column == "result" else "''"
                columns.append(f"{column} = CASE id {cases} ELSE {other} END, ")
                params += [part for o in present for part in (o.id, getattr(o, column))]
        ids = [o.id for o in outcomes]
        pairs = ", ".join(["(%s, %s)"] * len(outcomes))
        changed = self.change(
            f"UPDATE gnl_django_job {self.BY_KEY} SET {''.join(columns)}state='succeeded', "
            "finished_at={now}, claim_token=NULL, lease_expires_at=NULL "
            f"WHERE id IN {marks(ids)} AND (id, claim_token) IN ({self.PAIRS}{pairs}) "
            "AND state='running'",
            [*params, *ids, *(part for o in outcomes for part in (o.id, o.token))],
        )
        assert changed == len(outcomes), "rows we hold were changed by somebody else"  # noqa: S101

    def _settle_canceled(self, outcome: Outcome) -> None:
        self._attempt(outcome, "canceled", with_error=False)
        self._leave(outcome, "attempt=attempt-1, note='', finished_at={now}, ", [], "canceled")

    def _settle_other(self, outcome: Outcome) -> None:
        if outcome.recorded:
            self._attempt(outcome, outcome.recorded, with_error=True)
        columns = "attempt=attempt-%s, deferrals=deferrals+%s, note=%s, "
        params: list[object] = [int(outcome.refund), int(outcome.deferred), outcome.note]
        if outcome.error_class:
            columns += "error_class=%s, error=%s, error_key=%s, "
            params += [outcome.error_class, outcome.error, outcome.error_key]
        if outcome.state == "scheduled":
            columns += f"run_at={self.AFTER}, "
            params.append(self.duration(outcome.delay))
        elif outcome.state in {"dead", "canceled"}:
            columns += "finished_at={now}, "
        self._leave(outcome, columns, params, outcome.state)

    def _attempt(self, outcome: Outcome, recorded: str, *, with_error: bool) -> None:
        error = (outcome.error_class, outcome.error, outcome.traceback)
        self.change(f"{ATTEMPT}= %s", [recorded, *(error if with_error else ("",) * 3), outcome.id])

    def _leave(self, outcome: Outcome, columns: str, params: list[object], state: str) -> None:
        self.change(
            f"UPDATE gnl_django_job SET {columns}state=%s, claim_token=NULL, "
            "lease_expires_at=NULL WHERE id=%s AND claim_token=%s AND state='running'",
            [*params, state, outcome.id, outcome.token],
        )

    def progress(self, reports: Sequence[tuple[int, str, str]]) -> None:
        """Choose what is ours and free, then one UPDATE for each row."""

        def work() -> None:
            mine = self._mine([(job_id, token) for job_id, token, _ in reports])
            for job_id, token, text in sorted(reports):
                if (job_id, token) in mine:
                    self.change(
                        "UPDATE gnl_django_job SET progress=%s "
                        "WHERE id=%s AND claim_token=%s AND state='running'",
                        [text, job_id, token],
                    )

        self.own(work)

    def renew(self, leases: Sequence[Lease], ttl: float) -> list[tuple[Lease, Verdict]]:
        """Choose what is ours and free, then one UPDATE by primary key."""
        pairs = [(lease.id, lease.token) for lease in leases]

        def work() -> tuple[dict[tuple[int, str], bool], set[tuple[int, str]]]:
            mine = self._mine(pairs)
            if mine:
                ids = [pair[0] for pair in mine]
                self.change(
                    f"UPDATE gnl_django_job {self.BY_KEY} SET lease_expires_at={self.AFTER} "
                    f"WHERE id IN {marks(ids)} AND state='running'",
                    [self.duration(ttl), *ids],
                )
            failpoints.hit("renew.updated")
            return mine, self._still_ours([pair for pair in pairs if pair not in mine])

        failpoints.hit("renew.begin")
        mine, locked = self.own(work)
        failpoints.hit("renew.committed")
        verdicts = []
        for lease, pair in zip(leases, pairs, strict=True):
            if pair in mine:
                verdict = Verdict.CANCELED if mine[pair] else Verdict.RENEWED
            else:
                verdict = Verdict.LOCKED if pair in locked else Verdict.GONE
            verdicts.append((lease, verdict))
        return verdicts
