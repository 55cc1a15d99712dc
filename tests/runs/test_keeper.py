"""Claims are kept fresh while their bodies run, by one thread that ends when none is left."""

from datetime import timedelta
from typing import Any

import pytest

from gnl_django.models import Step
from gnl_django.runs import keeper
from gnl_django.runs.journal import journal_for
from gnl_django.runs.journal.memory import MemoryJournal
from gnl_django.runs.journal.shared import SqlJournal
from gnl_django.runs.keeper import Keeper
from tests.conformance.helpers import statements
from tests.conformance.support_runs import claimed_elsewhere, step_row
from tests.support import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "RENEWALS_PER_TTL", 50)


@pytest.mark.usefixtures("often")
def test_a_claim_is_extended_again_and_again_and_the_thread_ends() -> None:
    made = Keeper()
    token = claimed_elsewhere("s", age=timedelta(hours=1))
    row = step_row("s")
    with made.keeping(journal_for("default"), row.pk, token, 1):
        for _ in range(3):
            before = step_row("s").claimed_at
            wait_until(lambda before=before: step_row("s").claimed_at > before, 30)
    wait_until(lambda: made._thread is None, 30)
    assert made._kept == {}


@pytest.mark.usefixtures("often")
def test_an_adopted_claim_is_left_alone() -> None:
    made = Keeper()
    claimed_elsewhere("s", age=timedelta(hours=1))
    token = claimed_elsewhere("kept", age=timedelta(hours=1), ordinal=2)
    stolen, kept = step_row("s"), step_row("kept")
    journal = journal_for("default")
    with (
        made.keeping(journal, stolen.pk, "0" * 32, 1),
        made.keeping(journal, kept.pk, token, 1),
    ):
        wait_until(lambda: step_row("kept").claimed_at > kept.claimed_at, 30)
    assert step_row("s").claimed_at == stolen.claimed_at


@pytest.mark.usefixtures("often")
def test_a_failure_to_extend_is_logged_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    original, failures = SqlJournal.extend, [1, 2]

    def extend(self: Any, claims: Any) -> None:
        if failures:
            failures.pop()
            raise RuntimeError("no answer")
        original(self, claims)

    monkeypatch.setattr(SqlJournal, "extend", extend)
    token = claimed_elsewhere("s", age=timedelta(hours=1))
    row = step_row("s")
    with Keeper().keeping(journal_for("default"), row.pk, token, 1):
        wait_until(lambda: step_row("s").claimed_at > row.claimed_at, 30)
    assert caplog.text.count(f"The claim of step {row.pk} was not extended") == 2


def test_a_short_body_costs_no_statement() -> None:
    token = claimed_elsewhere("s")
    row = step_row("s")
    with statements() as texts, Keeper().keeping(journal_for("default"), row.pk, token, 3):
        pass
    assert texts == []
    assert Step.objects.get().claimed_at == row.claimed_at


@pytest.mark.usefixtures("often")
def test_a_claim_that_is_due_sooner_wakes_the_thread() -> None:
    made = Keeper()
    token = claimed_elsewhere("s", age=timedelta(hours=1))
    row = step_row("s")
    journal = journal_for("default")
    with made.keeping(journal, 0, "0" * 32, 86_400), made.keeping(journal, row.pk, token, 1):
        wait_until(lambda: step_row("s").claimed_at > row.claimed_at, 30)


@pytest.mark.django_db(transaction=False)
def test_nothing_is_kept_that_nobody_else_can_see() -> None:
    made = Keeper()
    for journal in (journal_for("default"), MemoryJournal("default")):
        with made.keeping(journal, 1, "0" * 32, 1):
            assert made._kept == {}
