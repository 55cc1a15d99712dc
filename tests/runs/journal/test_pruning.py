"""Deletion: whole runs, in order, and none that has come back meanwhile."""

from datetime import timedelta

import pytest

from gnl_django import claim
from gnl_django.core import clock
from gnl_django.models import Mark, Run, Step
from gnl_django.runs.journal import journal_for, pruning
from tests.conformance.conftest import NOON
from tests.conformance.support_runs import make_run

pytestmark = pytest.mark.django_db(transaction=True)


def test_looks_go_on_behind_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "BATCH", 2)
    journal = journal_for("default")
    for n in range(5):
        make_run(f"r{n}", org="acme", state="failed", finished_at=NOON + n // 2 * timedelta(1))
    seen, place = [], None
    while page := pruning.look(journal, "failed", NOON + timedelta(9), place):
        seen += [(run_id, org, at) for _, run_id, org, at in page]
        place = (page[-1][3], page[-1][0])
    assert seen == [(f"r{n}", "acme", NOON + n // 2 * timedelta(1)) for n in range(5)]
    assert pruning.look(journal, "completed", NOON + timedelta(9), None) == []
    assert len(pruning.look(journal, "failed", NOON, None)) == 2


def test_a_run_that_was_entered_or_ended_again_is_passed_over() -> None:
    journal = journal_for("default")
    pks = []
    for run_id, state, at in [
        ("old", "failed", NOON), ("entered", "running", None),
        ("again", "completed", NOON + timedelta(1)), ("older", "canceled", NOON - timedelta(1)),
    ]:  # fmt: skip
        run = make_run(run_id, state=state, finished_at=at)
        pks.append(run.pk)
        Step.objects.create(run=run, key="s", ordinal=1, mode="plain", state="done", attempt=1,
                            started_at=NOON, finished_at=NOON)  # fmt: skip
    assert pruning.delete(journal, [*pks, 0], NOON) == 2
    kept = {"entered", "again"}
    assert set(Run.objects.values_list("run_id", flat=True)) == kept
    assert set(Step.objects.values_list("run__run_id", flat=True)) == kept
    assert pruning.delete(journal, [], NOON) == pruning.delete(journal, [0], NOON) == 0


def test_marks_go_by_their_age(frozen: clock.Override) -> None:
    journal = journal_for("default")
    claim("old")
    frozen.advance(timedelta(microseconds=1000))
    claim("new")
    assert pruning.delete_marks(journal, NOON) == 1
    assert pruning.delete_marks(journal, NOON) == 0
    assert list(Mark.objects.values_list("key", flat=True)) == ["new"]
