"""Reads and writes that all databases share."""

from datetime import timedelta

import pytest

from gnl_django.core.leases import new_token
from gnl_django.models import Step
from gnl_django.runs.journal import journal_for
from gnl_django.runs.journal.base import NewStep
from gnl_django.runs.journal.shared import SqlJournal
from gnl_django.runs.rights import lock_right
from tests.conformance.conftest import NOON
from tests.conformance.support_runs import (
    Body,
    claimed_elsewhere,
    executor,
    make_run,
    run_row,
    step_row,
    steps_of,
)

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def journal() -> SqlJournal:
    return journal_for("default")


def test_reads_of_what_is_not_there(journal: SqlJournal) -> None:
    assert journal.row("unknown") is None
    assert journal.step(0, "unknown") is None
    assert journal.steps(0, (0, 0)) == []
    assert journal.mark("unknown") is None
    assert journal.has(0) is False
    assert journal.has(make_run().pk) is True


def test_a_page_begins_behind_its_place(journal: SqlJournal) -> None:
    run = executor()
    for n in range(3):
        run.step("s", Body(n))
    pk = run_row().pk
    page = journal.steps(pk, (0, 0))
    assert [step.ordinal for step in page] == [1, 2, 3]
    assert journal.steps(pk, (1, page[0].pk)) == page[1:]
    assert journal.steps(pk, (1, page[0].pk - 1)) == page


@pytest.mark.parametrize("cancel", [False, True])
def test_every_write_says_whether_its_right_held_and_is_asked_to_stop(
    journal: SqlJournal, cancel: bool
) -> None:
    run = make_run(
        lock_token="f" * 32, lock_holder="h", lock_expires_at=NOON,
        cancel_requested_at=NOON if cancel else None, cancel_reason="why" if cancel else "",
    )  # fmt: skip
    good, lost = [lock_right(run.pk, "f" * 32)], [lock_right(run.pk, "0" * 32)]
    token, other = new_token(), new_token()
    claim = NewStep(run.pk, "s", 1, "side_effect", 1, claim_token=token, claim_ttl=60)
    adopt = NewStep(run.pk, "s", 1, "side_effect", 2, claim_token=other, claim_ttl=5)

    def writes(pk: int, rights: list[object]) -> list[object]:
        return [
            journal.add(claim, rights),  # type: ignore[arg-type]
            journal.give_up(pk, token, "failed", "no", rights),  # type: ignore[arg-type]
            journal.adopt(pk, token, adopt, rights),  # type: ignore[arg-type]
            journal.record(pk, other, "7", rights),  # type: ignore[arg-type]
            journal.freeze_input(run.pk, '"i"', "h", rights),  # type: ignore[arg-type]
        ]

    assert [written.held for written in writes(0, lost)] == [False] * 5  # type: ignore[attr-defined]
    assert (steps_of(), run_row().input) == ([], None)
    first = journal.add(claim, good)
    assert (first.held, first.cancel, first.changed) == (True, cancel, True)
    assert first.pk == step_row("s").pk
    found = writes(step_row("s").pk, good)  # type: ignore[arg-type]
    assert [written.cancel for written in found] == [cancel] * 5  # type: ignore[attr-defined]
    assert [written.changed for written in found] == [False, True, True, True, True]  # type: ignore[attr-defined]
    assert steps_of() == [("s", "done", 7)]
    assert (step_row("s").attempt, step_row("s").claim_ttl) == (2, 5)
    assert journal.input_of(run.pk) == ('"i"', "h")
    assert journal.cancel_reason(good) == ("why" if cancel else "")


def test_a_done_step_is_final(journal: SqlJournal) -> None:
    token = claimed_elsewhere("s")
    pk = step_row("s").pk
    assert journal.record(pk, token, "1", ()).changed
    new = NewStep(run_row().pk, "s", 1, "side_effect", 1, claim_token="n", claim_ttl=60)
    assert not journal.record(pk, token, "2", ()).changed
    assert not journal.give_up(pk, token, "failed", "", ()).changed
    assert not journal.adopt(pk, token, new, ()).changed
    assert not journal.add(new, ()).changed
    before = step_row("s").claimed_at
    journal.extend([(pk, token)])
    assert (steps_of(), step_row("s").claimed_at) == ([("s", "done", 1)], before)


def test_a_claim_is_written_by_its_token_only(journal: SqlJournal) -> None:
    token = claimed_elsewhere("s", age=timedelta(hours=1))
    pk, before = step_row("s").pk, Step.objects.values().get()
    other = new_token()
    assert not journal.record(pk, other, "2", ()).changed
    assert not journal.give_up(pk, other, "failed", "", ()).changed
    journal.extend([(pk, other)])
    assert Step.objects.values().get() == before
    journal.extend([(pk, token)])
    assert step_row("s").claimed_at > before["claimed_at"]
