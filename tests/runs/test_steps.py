"""A step is a generator: what its drivers send and throw decides what the journal says."""

from typing import Any

import pytest
from django.db import OperationalError

from gnl_django import ExecutionRevoked, run_durable
from gnl_django.models import Run
from gnl_django.runs import steps
from gnl_django.runs.steps import PLAIN, Call, NotBegun, Options
from tests.conformance.support_runs import Body, claimed_elsewhere, executor, step_row, steps_of

pytestmark = pytest.mark.django_db(transaction=True)


def options(function: Any = Body, **given: Any) -> Options:
    how: dict[str, Any] = {"side_effect": False, "recover": None, "claim_ttl": None,
                           "atomic": False, **given}  # fmt: skip
    return steps.options(function, **how)


def test_options_have_a_mode() -> None:
    assert options() is PLAIN
    assert [options(**how).mode for how in ({}, {"side_effect": True}, {"atomic": True})] == [
        "plain", "side_effect", "atomic",
    ]  # fmt: skip
    assert options(side_effect=True).claim_ttl == 60
    assert options(side_effect=True, claim_ttl=86_400).claim_ttl == 86_400


def begin(how: Options) -> Any:
    entry = executor().entry
    progress = steps.step(entry, entry.number("s"), Body(1), how)
    call = next(progress)
    assert isinstance(call, Call)
    assert call.info.key == "s"
    return progress


def test_a_call_that_was_not_made_gives_the_claim_back() -> None:
    progress = begin(options(side_effect=True))
    assert step_row("s").state == "claimed"
    with pytest.raises(NotBegun):
        progress.throw(NotBegun())
    assert steps_of() == [("s", "released", None)]


def test_a_plain_call_that_was_not_made_leaves_nothing() -> None:
    progress = begin(PLAIN)
    with pytest.raises(NotBegun):
        progress.throw(NotBegun())
    assert steps_of() == []


def test_a_recover_that_was_not_asked_leaves_the_claim_as_it_is() -> None:
    token = claimed_elsewhere("s", state="failed")
    progress = begin(options(side_effect=True, recover=Body()))
    with pytest.raises(NotBegun):
        progress.throw(NotBegun())
    assert (step_row("s").state, step_row("s").claim_token) == ("failed", token)


def test_a_claim_that_cannot_be_given_up_waits_for_its_ttl(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = executor()

    def broken(*args: Any) -> Any:
        raise OperationalError("the database is gone")

    monkeypatch.setattr(run.entry.journal, "give_up", broken)
    with pytest.raises(LookupError):
        run.step("s", Body(LookupError()), side_effect=True)
    assert step_row("s").state == "claimed"
    assert "stays claimed until its ttl" in caplog.text


def test_a_body_that_fails_after_its_right_was_lost_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def work(run: Any) -> None:
        def body() -> None:
            Run.objects.update(lock_token="f" * 32)
            raise LookupError

        with pytest.raises(LookupError):
            run.step("s", body, side_effect=True)
        assert run.signal.why == "lease-lost"
        run.step("t", Body())

    with pytest.raises(ExecutionRevoked, match="lease-lost"):
        run_durable("r1", work)
    assert step_row("s").state == "claimed"  # its ttl decides
