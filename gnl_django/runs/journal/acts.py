"""How a stand-alone run ends or is canceled, and what an operator decides of a step.

Each is a conditional UPDATE that names its from-states (runs.md R5, R7, R22, R24, R26). Called by
`runs.api` and `runs.standing`.
"""

from collections.abc import Sequence

from gnl_django.core import failpoints
from gnl_django.core.heartbeat import Verdict
from gnl_django.core.leases import Lease
from gnl_django.runs.journal.shared import SqlJournal


def leave(
    journal: SqlJournal,
    run_pk: int,
    token: str,
    state: str,
    *,
    result: str | None = None,
    note: str = "",
    error_class: str = "",
    error: str = "",
) -> str | None:
    """Write a stand-alone run's outcome and end its lock; return the state, None when lost.

    state: "completed" or "failed"; a cancel that came meanwhile makes it "canceled" (R7, R24).
    """

    def work() -> str | None:
        changed = journal.change(
            "UPDATE gnl_django_run SET "
            "result = CASE WHEN cancel_requested_at IS NULL THEN %(result)s END, "
            "note=%(note)s, error_class=%(error_class)s, error=%(error)s, finished_at={now}, "
            "state = CASE WHEN cancel_requested_at IS NULL THEN %(state)s ELSE 'canceled' END, "
            "updated_at={now}, lock_token=NULL, lock_holder=NULL, lock_expires_at=NULL "
            "WHERE id = %(run)s AND lock_token = %(token)s AND state = 'running'",
            {
                "run": run_pk,
                "token": token,
                "state": state,
                "result": result,
                "note": note,
                "error_class": error_class,
                "error": error,
            },
        )
        failpoints.hit("run.final")
        if not changed:
            return None
        text = "SELECT state FROM gnl_django_run WHERE id = %(run)s"
        found: str = journal.rows(text, {"run": run_pk})[0][0]
        return found

    return journal.own(work)


def unlock(journal: SqlJournal, run_pk: int, token: str) -> None:
    """Give a run's lock back: it was stopped, it did not fail (R5); canceled when it is to be."""
    text = (
        "UPDATE gnl_django_run SET lock_token=NULL, lock_holder=NULL, lock_expires_at=NULL, "
        "finished_at = CASE WHEN cancel_requested_at IS NULL THEN finished_at ELSE {now} END, "
        "state = CASE WHEN cancel_requested_at IS NULL THEN state ELSE 'canceled' END, "
        "updated_at={now} WHERE id = %(run)s AND lock_token = %(token)s AND state = 'running'"
    )
    journal.own(lambda: journal.change(text, {"run": run_pk, "token": token}))


def renew_locks(
    journal: SqlJournal, leases: Sequence[Lease], ttl: float
) -> list[tuple[Lease, Verdict]]:
    """Extend the locks of stand-alone runs; never revive one that was given back (R26)."""
    verdicts = []
    for lease in leases:
        changed = journal.change(
            f"UPDATE gnl_django_run SET lock_expires_at={journal.after('ttl')} "
            "WHERE id = %(run)s AND lock_token = %(token)s AND state = 'running'",
            {"run": lease.id, "token": lease.token, "ttl": journal.words.duration(ttl)},
        )
        text = "SELECT cancel_requested_at IS NOT NULL FROM gnl_django_run WHERE id = %(run)s"
        if not changed:
            verdict = Verdict.GONE
        elif journal.rows(text, {"run": lease.id})[0][0]:
            verdict = Verdict.CANCELED
        else:
            verdict = Verdict.RENEWED
        verdicts.append((lease, verdict))
    return verdicts


def request_cancel(journal: SqlJournal, run_id: str, reason: str, *, owned: bool) -> bool:
    """Ask a run to stop, end it at once when nobody executes it; whether it was not over (R24).

    owned: its owner was asked already and decides when it ends.
    """
    live = "lock_token IS NOT NULL AND lock_expires_at > {now}"
    ends = (
        f"finished_at = CASE WHEN {live} THEN finished_at ELSE {{now}} END, "
        f"state = CASE WHEN {live} THEN state ELSE 'canceled' END, "
        f"lock_holder = CASE WHEN {live} THEN lock_holder END, "
        f"lock_token = CASE WHEN {live} THEN lock_token END, "
        # Last: MySQL assigns from left to right, and every condition reads it.
        f"lock_expires_at = CASE WHEN {live} THEN lock_expires_at END, "
    )
    if owned:
        ends = ""
    states = "'running', 'failed', 'canceled'" if owned else "'running', 'failed'"
    return journal.own(
        lambda: (
            journal.change(
                "UPDATE gnl_django_run SET cancel_reason = CASE WHEN cancel_requested_at IS NULL "
                "THEN %(reason)s ELSE cancel_reason END, "
                "cancel_requested_at = coalesce(cancel_requested_at, {now}), "
                f"{ends}updated_at={{now}} WHERE run_id = %(run_id)s AND state IN ({states})",
                {"run_id": run_id, "reason": reason},
            )
            == 1
        )
    )


def resolve(journal: SqlJournal, run_id: str, key: str, output: str | None) -> bool:
    """Decide a failed or abandoned side effect: done with `output`, or to be run again (R22)."""
    decided = (
        "state='released', error=''"
        if output is None
        else "state='done', output=%(output)s, finished_at={now}, error=''"
    )
    old = f"coalesce({journal.age('claimed_at')}, 0) >= coalesce(claim_ttl, 0)"
    return journal.own(
        lambda: (
            journal.change(
                f"UPDATE gnl_django_step SET {decided} WHERE mode = 'side_effect' "
                f"AND {journal.KEY} = %(key)s AND (state = 'failed' "
                f"OR (state = 'claimed' AND {old})) "
                "AND run_id = (SELECT id FROM gnl_django_run WHERE run_id = %(run_id)s)",
                {"run_id": run_id, "key": key, "output": output},
            )
            == 1
        )
    )
