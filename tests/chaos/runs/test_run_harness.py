"""The checkers of durable runs: with a known fault planted each turns red, without it stays green.

The rows are those of reliability.md 6.1 that concern runs, and one for each other rule. A crash is
an exception that the code under test does not know, raised at a fail point.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from gnl_django.core.db import now
from gnl_django.core.leases import new_token
from gnl_django.core.payloads import dump
from gnl_django.errors import GnlError
from gnl_django.models import Run, Step
from gnl_django.queue.store.base import Outcome
from gnl_django.runs import context, steps
from gnl_django.runs.entry import Entry, Place
from gnl_django.runs.journal import journal_for
from gnl_django.runs.journal.base import Lock, NewStep, Recorded, RunRow, Written
from gnl_django.runs.journal.shared import SqlJournal
from gnl_django.runs.standing import Standing
from tests.chaos import durable, telling
from tests.chaos.durable import Part
from tests.chaos.runs.conftest import Plans, Settle, plan_of
from tests.checkers import Report, check_all
from tests.run_history import RunRecorder
from tests.support import wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("chaos_kinds"),
    pytest.mark.parametrize("planted", [True, False], ids=["planted", "sound"]),
    pytest.mark.row("reliability", "2"),
]

Hook = Callable[[str, Callable[[], object]], None]
Patch = pytest.MonkeyPatch
ME = "test"  # as `telling` knows this process


class Crash(BaseException):
    """The process is gone."""


def enter(*parts: Part, **options: Any) -> None:
    """Enter the run "r" and walk through the parts; whatever is raised is told by the history."""
    with contextlib.suppress(GnlError, Crash, ValueError):
        durable.stand("r", plan_of("r", *parts, **options))


def once(act: Callable[[], object]) -> Callable[[], None]:
    """Return a hook that acts at its first call only."""
    turns: Iterator[Callable[[], object]] = iter([act])

    def hook() -> None:
        for turn in turns:
            turn()
            return

    return hook


def crash() -> None:
    raise Crash


def forget_the_lock() -> None:
    """Let the lock of every run end."""
    Run.objects.update(lock_token=None, lock_holder=None, lock_expires_at=None)


def judge(recorder: RunRecorder, planted: bool, *rules: str, **known: Any) -> Report:
    """Check that exactly a planted fault turns the rules red."""
    report = check_all(recorder.history(faulted=True, **known))
    if planted:
        assert report.red >= set(rules), str(report)
    else:
        report.assert_green()
    return report


def last_writer_wins(
    self: SqlJournal, step: NewStep, rights: Any, *, before: str, after: str
) -> Written:
    """Write a step over whatever stands there."""
    from gnl_django.core.db import now

    moment = now(self.using)
    assert step.output is not None
    Step.objects.filter(run_id=step.run_pk, key=step.key).delete()
    made = Step.objects.create(
        run_id=step.run_pk, key=step.key, ordinal=step.ordinal, mode=step.mode, state="done",
        attempt=step.attempt, output=steps.values.decode(step.output), started_at=moment,
        finished_at=moment,
    )  # fmt: skip
    return Written(held=True, changed=True, pk=made.pk)


def test_a_step_that_is_recorded_by_the_last_writer(
    planted: bool, recorder: RunRecorder, failpoint: Hook, monkeypatch: Patch
) -> None:
    if planted:
        monkeypatch.setattr(type(journal_for("default")), "insert_step", last_writer_wins)

    def another_executor() -> None:
        forget_the_lock()
        enter(Part(name="a"))

    failpoint("step.effect_done", once(another_executor))
    enter(Part(name="a"))
    judge(recorder, planted, "R1", "R2", "R8", stopped={ME})


def test_an_atomic_steps_row_outside_of_its_transaction(
    planted: bool, recorder: RunRecorder, failpoint: Hook, monkeypatch: Patch
) -> None:
    if planted:
        monkeypatch.setattr(SqlJournal, "atomically", lambda self, body: body())
    failpoint("step.effect_done", once(crash))
    for _ in range(2):
        enter(Part(name="a", mode="atomic"))
    judge(recorder, planted, "R4", killed={ME})


def test_a_side_effect_without_its_claim(
    planted: bool, recorder: RunRecorder, failpoint: Hook, monkeypatch: Patch
) -> None:
    if planted:
        monkeypatch.setattr(
            steps,
            "_side_effect",
            lambda entry, place, body, how, found: steps._plain(entry, place, body),
        )
    failpoint("step.effect_done", once(crash))
    for _ in range(2):
        enter(Part(name="a", mode="side_effect"))
    judge(recorder, planted, "R4b", killed={ME})


def test_an_entry_that_does_not_look_into_the_journal(
    planted: bool, recorder: RunRecorder, monkeypatch: Patch
) -> None:
    if planted:
        monkeypatch.setattr(Entry, "recorded", lambda self, place: None)
    enter(Part(name="a"), Part(name="b", fall="before"))
    recorded = now("default")
    # SQLite's clock counts milliseconds: a start in that of the commit is none after it.
    wait_until(lambda: now("default") > recorded)
    enter(Part(name="a"), Part(name="b"))
    judge(recorder, planted, "R3", "R5")


def test_a_body_that_is_called_twice(
    planted: bool, recorder: RunRecorder, monkeypatch: Patch
) -> None:
    if planted:
        sound = context._call

        def twice(entry: Entry, call: steps.Call) -> Any:
            sound(entry, call)
            return sound(entry, call)

        monkeypatch.setattr(context, "_call", twice)
    enter(Part(name="a"))
    judge(recorder, planted, "R5")


def test_an_input_that_is_not_frozen(
    planted: bool, recorder: RunRecorder, monkeypatch: Patch
) -> None:
    if planted:

        def take(self: Entry, text: str, *, strict: bool | None = None) -> None:
            self.row = replace(self.entered, input=text)

        monkeypatch.setattr(Entry, "give_input", take)
    for given in (1, 2):
        enter(Part(name="a", fall="before"), input={"n": given}, strict=False)
    judge(recorder, planted, "R6")


def test_two_inputs_that_are_taken_for_one(
    planted: bool, recorder: RunRecorder, monkeypatch: Patch
) -> None:
    if planted:
        monkeypatch.setattr(steps.values, "digest", lambda text: "the same for all")
    for given in (1, 2):
        enter(Part(name="a", fall="before"), input={"n": given})
    judge(recorder, planted, "R6")


def test_an_input_that_is_written_over(
    planted: bool, recorder: RunRecorder, monkeypatch: Patch
) -> None:
    enter(Part(name="a", fall="before"), input=1)
    if planted:
        Run.objects.update(input=2, input_hash=steps.values.digest(dump(2)))
    judge(recorder, planted, "R6")


def test_a_replay_by_place_whatever_the_code_asks_for(
    planted: bool, recorder: RunRecorder, monkeypatch: Patch
) -> None:
    if planted:

        def by_place(self: Entry, row: RunRow, place: Place) -> Recorded | None:
            found = {step.ordinal: step for step in self.journal.steps(row.pk, (0, 0))}
            return found.get(place.ordinal)

        monkeypatch.setattr(Entry, "_in_order", by_place)
    enter(Part(name="a"), Part(name="b", fall="before"))
    enter(Part(name="b"), Part(name="a"))
    judge(recorder, planted, "R2", "R7")


def test_two_steps_in_one_place(planted: bool, recorder: RunRecorder, monkeypatch: Patch) -> None:
    if planted:
        monkeypatch.setattr(Entry, "_in_order", Entry._anywhere)
    enter(Part(name="a"), Part(name="b", fall="before"))
    enter(Part(name="c"), Part(name="a"))
    judge(recorder, planted, "R7")


def test_a_step_that_is_written_without_its_right(
    planted: bool, recorder: RunRecorder, failpoint: Hook, monkeypatch: Patch
) -> None:
    journal = type(journal_for("default"))
    if planted:
        insert = journal.insert_step
        monkeypatch.setattr(
            journal, "insert_step", lambda self, step, rights, **how: insert(self, step, (), **how)
        )

    def another_takes_the_run() -> None:
        forget_the_lock()
        other = Standing("r", "default", org="", strict=True, text=None, signal=None, owner=None)
        other._lock = Lock(new_token(), "somebody", 30.0)
        other.enter()
        other._leave(lambda token, pk: None)  # it goes on elsewhere

    failpoint("step.effect_done", once(another_takes_the_run))
    enter(Part(name="a"))
    judge(recorder, planted, "R8", stopped={ME})


def test_a_step_that_is_written_when_nobody_has_the_run(
    planted: bool, recorder: RunRecorder, failpoint: Hook, monkeypatch: Patch
) -> None:
    journal = type(journal_for("default"))
    if planted:
        insert = journal.insert_step
        monkeypatch.setattr(
            journal, "insert_step", lambda self, step, rights, **how: insert(self, step, (), **how)
        )
    failpoint("step.begin", once(forget_the_lock))
    enter(Part(name="a", mode="side_effect"))
    judge(recorder, planted, "R8", stopped={ME})


def test_a_run_that_does_not_follow_its_job(
    planted: bool,
    recorder: RunRecorder,
    give_plan: Plans,
    settle: Settle,
    monkeypatch: Patch,
) -> None:
    if planted:
        monkeypatch.setattr(Outcome, "_replace", lambda outcome, **changes: outcome)
    telling.worker_starts()
    give_plan(plan_of("a", Part(name="a")))
    settle()
    judge(recorder, planted, "R9")
