"""The journal of a trial keeps one run's keys, and nothing else."""

import pytest
from django.contrib.auth.models import Group

from gnl_django.models import Run, Step
from gnl_django.runs.journal.base import NewRun, NewStep
from gnl_django.runs.journal.memory import MemoryJournal

pytestmark = pytest.mark.django_db(transaction=True)


def make() -> MemoryJournal:
    journal = MemoryJournal("default")
    row = journal.enter(NewRun("try", "acme", True, '"in"', "h", None), (), None)
    assert row is not None
    assert (row.entered, row.entries, row.state, row.input) == (True, 1, "running", '"in"')
    return journal


def new(key: str, output: str | None = None) -> NewStep:
    return NewStep(0, key, 1, "plain", 1, output=output, claim_token="t")


def test_it_remembers_what_was_added() -> None:
    journal = make()
    assert journal.steps(0, (0, 0)) == []
    assert journal.step(0, "a") is None
    for at, step in enumerate((new("a", "1"), new("b"))):
        written = journal.add(step, ())
        assert (written.held, written.changed, written.pk) == (True, True, at)
    done, claimed = journal.step(0, "a"), journal.step(0, "b")
    assert done is not None
    assert claimed is not None
    assert (done.state, done.output, claimed.state, claimed.claim_token) == (
        "done", "1", "claimed", "t",
    )  # fmt: skip
    assert journal.record(1, "t", "2", ()).changed
    assert journal.give_up(1, "t", "failed", "no", ()).changed
    assert not journal.adopt(1, "t", new("b"), ()).changed
    assert journal.has(0)
    assert (Run.objects.count(), Step.objects.count()) == (0, 0)


def test_the_first_input_and_the_first_mark_stay() -> None:
    journal = make()
    assert journal.freeze_input(0, '"other"', "o", ()).held
    assert journal.input_of(0) == ('"in"', "h")
    bare = MemoryJournal("default")
    bare.enter(NewRun("try", "", True, None, None, None), (), None)
    bare.freeze_input(0, '"late"', "l", ())
    assert bare.input_of(0) == ('"late"', "l")
    assert [journal.claim_mark("k", "true"), journal.claim_mark("k", "true")] == [True, False]
    assert (journal.mark("k"), journal.mark("other", latest=True)) == ("true", None)
    assert journal.cancel_reason(()) == ""


def test_a_body_is_a_transaction_of_its_own() -> None:
    journal = make()

    def fails() -> None:
        Group.objects.create(name="g")
        raise LookupError

    with pytest.raises(LookupError):
        journal.atomically(fails)
    assert Group.objects.count() == 0
    assert journal.atomically(lambda: 5) == 5
