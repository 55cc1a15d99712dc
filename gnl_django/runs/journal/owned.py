"""How runs follow the rows that own them, inside the owners' own transaction (runs.md R7, R8).

The stores of floors that own runs call `follow` and `revive`, or on PostgreSQL put the texts of
`following` and `reviving` into their statements.
"""

from collections.abc import Mapping, Sequence

from gnl_django.runs.journal.shared import SqlJournal

#: What a run becomes when its owner is so; while its owner goes on it is running.
FOLLOWS = {"succeeded": "completed", "dead": "failed", "canceled": "canceled"}

_ENDED = "finished_at={now}, updated_at={now}"
_REVIVED = (
    "state='running', finished_at=NULL, cancel_requested_at=NULL, cancel_reason='', "
    "error_class='', error='', updated_at={now}"
)


def follow(journal: SqlJournal, states: Mapping[str, str]) -> None:
    """Let runs follow their owners; states: run id -> the owner's state.

    Runs that nobody has entered are not there, and owners that go on change nothing.
    """
    for owner_state, state in FOLLOWS.items():
        run_ids = sorted(run_id for run_id, now in states.items() if now == owner_state)
        _change_all(
            journal,
            f"UPDATE gnl_django_run<by> SET state='{state}', {_ENDED} "
            "WHERE run_id IN <ids> AND state IN ('running', 'failed')",
            run_ids,
        )


def revive(journal: SqlJournal, run_ids: Sequence[str]) -> None:
    """Let the runs of revived owners go on where they stopped."""
    _change_all(
        journal,
        f"UPDATE gnl_django_run<by> SET {_REVIVED} "
        "WHERE run_id IN <ids> AND state IN ('failed', 'canceled')",
        sorted(run_ids),
    )


def _change_all(journal: SqlJournal, text: str, run_ids: Sequence[str]) -> None:
    if run_ids:
        names = {f"id{at}": run_id for at, run_id in enumerate(run_ids)}
        listed = ", ".join(f"%({name})s" for name in names)
        by = journal.words.by.format("gnl_run_run_id")
        journal.change(text.replace("<by>", by).replace("<ids>", f"({listed})"), names)


def following(source: str) -> str:
    """Return PostgreSQL's UPDATE for `follow`; `source` selects run ids and owners' states.

    `state || ''` keeps the planner from the index over ended runs: each run is one look-up.
    """
    cases = " ".join(f"WHEN '{owner}' THEN '{state}'" for owner, state in FOLLOWS.items())
    finals = ", ".join(f"'{owner}'" for owner in FOLLOWS)
    return (
        f"UPDATE gnl_django_run r SET state = CASE o.state {cases} END, {_ENDED} "
        f"FROM ({source}) o(run_id, state) WHERE r.run_id = o.run_id "
        f"AND o.state IN ({finals}) AND r.state || '' IN ('running', 'failed')"
    )


def reviving(source: str) -> str:
    """Return PostgreSQL's UPDATE for `revive`; `source` selects run ids."""
    return (
        f"UPDATE gnl_django_run r SET {_REVIVED} FROM ({source}) o(run_id) "
        "WHERE r.run_id = o.run_id AND r.state || '' IN ('failed', 'canceled')"
    )
