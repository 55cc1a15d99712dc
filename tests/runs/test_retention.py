"""What is old goes in batches; a test may ask for one at a time."""

from datetime import timedelta
from typing import Any

import pytest

from gnl_django import claim
from gnl_django.core import clock, registry
from gnl_django.core.registry import RunOwner
from gnl_django.models import Mark, Run
from gnl_django.runs import retention
from gnl_django.runs.journal import pruning
from tests.conformance.conftest import NOON
from tests.conformance.support_runs import make_run

pytestmark = pytest.mark.django_db(transaction=True)


def test_an_owner_is_asked_about_its_own_runs_only(
    frozen: clock.Override, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def kept(runs: Any, using: str) -> set[str]:
        asked.append((sorted(runs), using))
        return {"mine:1"}

    owner = RunOwner(("mine:", "also:"), cancel=lambda *args: False, kept=kept)
    monkeypatch.setattr(registry, "_run_owners", [owner])
    old = NOON - timedelta(days=31)
    for run_id in ("mine:1", "mine:2", "also:1", "other"):
        make_run(run_id, org="acme", state="completed", finished_at=old)
    assert [batch for batch in retention.batches("default") if batch.get("runs")] == [{"runs": 3}]
    assert asked == [([("also:1", "acme"), ("mine:1", "acme"), ("mine:2", "acme")], "default")]
    assert list(Run.objects.values_list("run_id", flat=True)) == ["mine:1"]


def test_marks_go_a_batch_at_a_time(
    frozen: clock.Override, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "MARKS", 2)
    for n in range(5):
        claim(f"k{n}")
    frozen.advance(timedelta(days=90))
    batches = retention.batches("default")
    assert [next(batches), next(batches)] == [{"marks": 2}, {"marks": 2}]
    assert Mark.objects.count() == 1
    assert list(batches) == [{"marks": 1}]
