"""The rows refuse what must never be, whoever writes it."""

from typing import Any

import pytest
from django.db import IntegrityError, OperationalError, transaction

from gnl_django.models import Mark, Run, Step
from gnl_django.runs.models import RUN_TRANSITIONS, STEP_TRANSITIONS, RunState, StepState
from tests.conformance.conftest import NOON
from tests.conformance.support_runs import make_run

pytestmark = pytest.mark.django_db

REFUSED = (IntegrityError, OperationalError)  # MariaDB's CHECK is an OperationalError


def step(run: Run, **changes: Any) -> Step:
    values: dict[str, Any] = {
        "key": "s", "ordinal": 1, "mode": "plain", "state": "done", "attempt": 1,
        "started_at": NOON, "finished_at": NOON, **changes,
    }  # fmt: skip
    return Step.objects.create(run=run, **values)


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "sleeping"},
        {"state": "completed"},
        {"state": "running", "finished_at": NOON},
        {"lock_token": "t"},
        {"lock_token": "t", "lock_holder": "h"},
        {"lock_expires_at": NOON},
    ],
    ids=str,
)
def test_an_impossible_run_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(REFUSED), transaction.atomic():
        make_run("r", **changes)
    make_run("r")
    with pytest.raises(IntegrityError), transaction.atomic():
        make_run("r")


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "done", "finished_at": None},
        {"state": "claimed"},
        {"state": "failed"},
        {"state": "running", "finished_at": None},
        {"mode": "other"},
    ],
    ids=str,
)
def test_an_impossible_step_is_refused(changes: dict[str, Any]) -> None:
    run = make_run("r")
    with pytest.raises(REFUSED), transaction.atomic():
        step(run, **changes)
    step(run)
    with pytest.raises(IntegrityError), transaction.atomic():
        step(run)


def test_rows_are_called_by_their_names() -> None:
    run = make_run("r")
    assert [str(run), str(step(run)), str(Mark(key="k"))] == ["r", "s", "k"]


def test_json_null_and_no_output_differ() -> None:
    run = make_run("r")
    step(run, key="none", state="claimed", finished_at=None)
    assert Step.objects.filter(output__isnull=True).count() == 1
    assert Step.objects.get(key="none").output is None


def test_every_state_has_its_transitions_and_a_final_one_none() -> None:
    assert set(RUN_TRANSITIONS) == set(RunState)
    assert set(STEP_TRANSITIONS) == set(StepState)
    assert not RUN_TRANSITIONS[RunState.COMPLETED]
    assert not STEP_TRANSITIONS[StepState.DONE]
    assert RUN_TRANSITIONS[RunState.CANCELED] == {RunState.RUNNING}  # by its owner only
