"""Runs from outside: bad arguments are refused, unknown runs are no error."""

from typing import Any

import pytest

from gnl_django import cancel_run, get_run, list_steps, resolve_step
from tests.conformance.support_runs import claimed_elsewhere, executor, step_row

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("limit", [0, -1, 201, True, 1.5, "5", None])
def test_a_limit_is_1_to_200(limit: Any) -> None:
    with pytest.raises(ValueError, match="limit"):
        list_steps("r1", limit=limit)


def test_pages_go_on_behind_an_ordinal() -> None:
    run = executor()
    for n in range(5):
        run.step("s", lambda n=n: n)
    seen: list[Any] = []
    while page := list_steps("r1", after=seen[-1].ordinal if seen else 0, limit=2):
        seen += page
    assert [row.output for row in seen] == [0, 1, 2, 3, 4]
    assert list_steps("r1", limit=200) == seen


def test_unknown_runs_and_steps_are_no_error() -> None:
    for name in ("", "unknown", "job:x", "job:", "x" * 999, "a\tb"):
        assert get_run(name) is None
        assert list_steps(name) == []
        assert cancel_run(name) is False
        assert resolve_step(name, name, rerun=True) is False


def test_a_decision_is_about_one_step_of_one_run() -> None:
    for run_id in ("r1", "r2"):
        for ordinal, key in enumerate(("a", "b"), 1):
            claimed_elsewhere(key, run_id=run_id, state="failed", ordinal=ordinal)
    assert resolve_step("r1", "a", rerun=True)
    states = [step_row(key, run_id).state for run_id in ("r1", "r2") for key in ("a", "b")]
    assert states == ["released", "failed", "failed", "failed"]
