"""How runs that stand alone end, by conditional updates that name their from-states."""

from typing import Any

import pytest

from gnl_django.core import clock
from gnl_django.core.heartbeat import Verdict
from gnl_django.core.leases import Lease
from gnl_django.models import Run
from gnl_django.runs.journal import acts, journal_for
from tests.conformance.conftest import NOON
from tests.conformance.support_runs import make_run, run_columns, run_row

pytestmark = pytest.mark.django_db(transaction=True)

TOKEN = "f" * 32


def held(**changes: Any) -> Run:
    return make_run(
        **{"lock_token": TOKEN, "lock_holder": "h", "lock_expires_at": NOON.replace(year=2999),
           **changes}
    )  # fmt: skip


@pytest.mark.parametrize("state", ["completed", "failed"])
def test_leaving_writes_the_outcome_and_ends_the_lock(frozen: clock.Override, state: str) -> None:
    run = held()
    journal = journal_for("default")
    assert acts.leave(journal, run.pk, "0" * 32, state) is None
    assert run_row().state == "running"
    assert acts.leave(journal, run.pk, TOKEN, state, result="7", note="n", error="e") == state
    row = run_row()
    assert (row.state, row.result, row.note, row.error, row.finished_at) == (
        state, 7, "n", "e", NOON,
    )  # fmt: skip
    assert (row.lock_token, row.lock_holder, row.lock_expires_at) == (None, None, None)
    assert acts.leave(journal, run.pk, TOKEN, "failed") is None


def test_a_cancel_that_came_first_makes_the_outcome() -> None:
    run = held(cancel_requested_at=NOON)
    assert acts.leave(journal_for("default"), run.pk, TOKEN, "completed", result="7") == "canceled"
    assert (run_row().state, run_row().result) == ("canceled", None)


def test_a_lock_is_given_back_by_its_token_only() -> None:
    run = held()
    journal = journal_for("default")
    before = run_columns()
    acts.unlock(journal, run.pk, "0" * 32)
    assert run_columns() == before
    acts.unlock(journal, run.pk, TOKEN)
    assert (run_row().lock_token, run_row().state) == (None, "running")


def test_renewals_tell_what_became_of_each_lock(frozen: clock.Override) -> None:
    ids = [held(run_id=run_id).pk for run_id in ("good", "canceled", "ended", "taken")]
    Run.objects.filter(run_id="canceled").update(cancel_requested_at=NOON)
    Run.objects.filter(run_id="ended").update(state="failed", finished_at=NOON)
    Run.objects.filter(run_id="taken").update(lock_token="0" * 32)
    leases = [Lease(pk, TOKEN, good_at=0.0) for pk in (*ids, 0)]
    found = acts.renew_locks(journal_for("default"), leases, 12.5)
    assert [verdict for _, verdict in found] == [
        Verdict.RENEWED, Verdict.CANCELED, Verdict.GONE, Verdict.GONE, Verdict.GONE,
    ]  # fmt: skip
    assert (run_row("good").lock_expires_at - NOON).total_seconds() == 12.5
    assert run_row("taken").lock_expires_at == NOON.replace(year=2999)


@pytest.mark.parametrize("owned", [False, True])
def test_a_request_names_its_from_states(owned: bool) -> None:
    journal = journal_for("default")
    for state in ("completed", "canceled", "failed"):
        make_run(state, state=state, finished_at=NOON)
    found = {
        state: acts.request_cancel(journal, state, "why", owned=owned)
        for state in ("completed", "canceled", "failed", "unknown")
    }
    assert found == {"completed": False, "canceled": owned, "failed": True, "unknown": False}
    assert run_row("completed").cancel_requested_at is None
    assert run_row("failed").state == ("failed" if owned else "canceled")
