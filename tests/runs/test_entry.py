"""One entry: keys and ordinals, what the journal has, and the right to go on."""

import pytest

from gnl_django import ExecutionRevoked, NonDeterministicRun, StaleClaim, StepInfo
from gnl_django.core.leases import new_token
from gnl_django.core.revocation import Revocation
from gnl_django.models import Run, Step
from gnl_django.runs import entry as entries
from gnl_django.runs.entry import Entry, Place, body_of, inside
from gnl_django.runs.journal import journal_for, shared
from gnl_django.runs.journal.base import Written
from gnl_django.runs.rights import lock_right
from tests.conformance.helpers import statements
from tests.conformance.support_runs import Body, entry, executor, make_run, run_row

pytestmark = pytest.mark.django_db(transaction=True)


def test_calls_are_numbered_by_name_and_by_order() -> None:
    made = entry()
    assert [made.number(name) for name in ("a", "b", "a", "a")] == [
        Place("a", 1), Place("b", 2), Place("a#2", 3), Place("a#3", 4),
    ]  # fmt: skip
    assert Run.objects.count() == 0


def test_nothing_is_asked_of_the_database_before_it_is_entered_and_once_then() -> None:
    with statements() as texts:
        made = entry()
        made.number("a")
    assert texts == []
    assert made.entered.entries == 1
    with statements() as texts:
        assert made.enter() is made.entered
    assert texts == []


def test_inside_is_the_innermost_body() -> None:
    made, other = entry(), entry("r2")
    assert inside.get() is None
    with body_of(made, made.info("a")):
        assert inside.get() == (made, StepInfo("a", "r1/a"))
        other.number("b")
        with body_of(other, other.info("b")):
            assert inside.get() == (other, StepInfo("b", "r2/b"))
        with pytest.raises(RuntimeError, match="'c' is called inside the body of 'a'"):
            made.number("c")
    assert inside.get() is None


def test_what_a_write_says_is_passed_on() -> None:
    made = entry()
    assert made.took(Written(held=True, changed=True)).changed
    assert not made.signal.revoked
    made.took(Written(held=True, cancel=True))
    assert made.signal.why == "canceled"
    other = entry()
    with pytest.raises(StaleClaim, match="'r1' is executed by somebody else"):
        other.took(Written(held=False))
    assert other.signal.why == "lease-lost"
    with pytest.raises(ExecutionRevoked, match="lease-lost"):
        other.raise_if_revoked()


def test_a_right_that_is_not_there_enters_nothing() -> None:
    signal = Revocation()
    right = lock_right(12_345, new_token())
    made = Entry("r1", journal_for("default"), rights=[right], signal=signal)
    with pytest.raises(StaleClaim):
        made.enter()
    assert (signal.why, Run.objects.count()) == ("lease-lost", 0)


def test_the_attempt_is_the_owners_or_counts_the_entries() -> None:
    executor().step("s", Body())
    assert entry().attempt == 2
    journal = journal_for("default")
    made = Entry("r1", journal, rights=(), signal=Revocation(), attempt=7)
    assert made.attempt == 7
    assert run_row().entries == 2  # nobody has asked it for the row yet


def test_a_page_that_was_left_behind_is_read_again_by_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task may ask late; memory holds one page only."""
    for module in (entries, shared):
        monkeypatch.setattr(module, "PAGE", 3)
    first = executor()
    for n in range(10):
        first.step(f"s{n}", Body(n))
    again = executor().entry
    places = [again.number(f"s{n}") for n in range(10)]
    found = again.recorded(places[9])
    assert found is not None
    assert found.output == "9"
    assert len(again._by_ordinal) <= 3
    late = again.recorded(places[0])
    assert late is not None
    assert late.output == "0"


def test_a_gap_in_the_ordinals_is_no_other_order() -> None:
    run = make_run()
    for ordinal, key in ((1, "a"), (3, "c")):
        Step.objects.create(
            run=run, key=key, ordinal=ordinal, mode="plain", state="done", output=key, attempt=1,
            started_at=run.created_at, finished_at=run.created_at,
        )  # fmt: skip
    again = executor()
    assert [again.step(name, Body("new")) for name in ("a", "b", "c")] == ["a", "new", "c"]
    other = executor()
    other.step("a", Body())
    with pytest.raises(NonDeterministicRun) as caught:
        other.step("c", Body())
    assert (caught.value.ordinal, caught.value.recorded) == (2, "b")
