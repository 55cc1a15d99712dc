"""A holder and the one who takes its run over, in every order of their steps, on PostgreSQL.

Each step of each mode ends recorded once, and nobody gets another value than the recorded one
(reliability.md 5.4, step record||step record).
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection

from gnl_django import RunContext, StaleClaim
from gnl_django.core.leases import new_token
from gnl_django.core.revocation import Revocation
from gnl_django.errors import RunBusy
from gnl_django.models import Run, Step
from gnl_django.runs.entry import Entry
from gnl_django.runs.journal import journal_for
from gnl_django.runs.journal.base import Lock
from gnl_django.runs.rights import lock_right
from tests.interleave import Explorer, explore

PAST = datetime(2020, 1, 1, tzinfo=UTC)
MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "atomic": {"atomic": True},
    "side_effect": {"side_effect": True, "recover": lambda info: {"done": False}},
}

pytestmark = [
    pytest.mark.postgres("its lock view shows who waits for whom"),
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(300),
]


@pytest.fixture
def explorer(settings: Any) -> Iterator[Explorer]:
    """Two actors that stop where the effect is done, and before the COMMIT of its record."""
    settings.GNL = {**getattr(settings, "GNL", {}), "FAILPOINTS": True}
    explorer = Explorer(2, ["step.effect_done", "step.journaled"])
    yield explorer
    explorer.close()


def entered() -> Entry:
    """Enter the run under a lock of our own."""
    entry = Entry("r", journal_for("default"), rights=(), signal=Revocation())
    token = new_token()
    row = entry.enter(lock=Lock(token, token, 30.0))
    entry.rights = (lock_right(row.pk, token),)
    return entry


@pytest.mark.row("runs", "D13", "D25", "D31", "D35")
@pytest.mark.parametrize("mode", MODES)
def test_a_holder_and_its_heir_record_a_step_once(explorer: Explorer, mode: str) -> None:
    bodies: list[str] = []

    def step(entry: Entry, name: str) -> Any:
        def body() -> str:
            bodies.append(name)
            return name

        try:
            return RunContext(entry).step("s", body, **MODES[mode])
        except StaleClaim:
            return StaleClaim

    def take_over() -> Any:
        Run.objects.update(lock_expires_at=PAST)
        explorer.point("the lock has ended")
        Step.objects.update(claimed_at=PAST)  # a claim of its holder is abandoned too
        try:
            return step(entered(), "heir")
        except RunBusy as busy:  # not possible: nobody renews here
            return busy

    def prepare() -> list[Any]:
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM gnl_django_step")
            cursor.execute("DELETE FROM gnl_django_run")
        bodies.clear()
        holder = entered()
        return [lambda: step(holder, "holder"), take_over]

    def check(answers: list[Any]) -> None:
        recorded = Step.objects.get()
        assert recorded.state == "done"
        assert answers[1] == recorded.output
        assert answers[0] in {recorded.output, StaleClaim}
        assert len(bodies) == len(set(bodies))

    assert explore(prepare, check, explorer) >= 10
