"""Runs follow their owners; the texts for PostgreSQL do the same as the functions."""

import pytest
from django.db import connection

from gnl_django.core import clock
from gnl_django.models import Run
from gnl_django.runs.journal import journal_for, owned
from tests.conformance.conftest import NOON
from tests.conformance.support_runs import make_run, run_row
from tests.support import vendor

pytestmark = pytest.mark.django_db(transaction=True)

STATES = ("running", "completed", "failed", "canceled")


def fill() -> None:
    for state in STATES:
        for owner in ("ready", "succeeded", "dead", "canceled"):
            make_run(
                f"{state} {owner}", state=state, error="e" if state == "failed" else "",
                finished_at=None if state == "running" else NOON.replace(year=2001),
                cancel_requested_at=NOON if state == "canceled" else None, cancel_reason="why",
            )  # fmt: skip


def after(run_id: str) -> str:
    """Return the state that R7 and R8 give it."""
    state, owner = run_id.split()
    if state in {"completed", "canceled"}:
        return state
    return owned.FOLLOWS.get(owner, state)


def check_followed() -> None:
    for run in Run.objects.all():
        assert run.state == after(run.run_id), run.run_id
        state, owner = run.run_id.split()
        if state in {"running", "failed"} and owner != "ready":
            assert run.finished_at == NOON


def test_a_run_that_may_follows(frozen: clock.Override) -> None:
    fill()
    names = list(Run.objects.values_list("run_id", flat=True))
    owned.follow(journal_for("default"), {name: name.split()[1] for name in [*names, "gone dead"]})
    check_followed()
    owned.follow(journal_for("default"), {})


def test_the_revived_go_on(frozen: clock.Override) -> None:
    fill()
    names = list(Run.objects.values_list("run_id", flat=True))
    owned.revive(journal_for("default"), [*names, "gone"])
    owned.revive(journal_for("default"), [])
    check_revived()


def check_revived() -> None:
    states = {run.run_id.split()[0]: run.state for run in Run.objects.all()}
    assert states == {
        "running": "running", "completed": "completed", "failed": "running", "canceled": "running",
    }  # fmt: skip
    row = run_row("canceled dead")
    assert (row.finished_at, row.cancel_requested_at, row.cancel_reason, row.error) == (
        None, None, "", "",
    )  # fmt: skip


@pytest.mark.postgres("texts for its statements")
def test_the_texts_of_postgresql_do_the_same(frozen: clock.Override) -> None:
    assert vendor() == "postgresql"
    fill()
    source = "SELECT run_id, split_part(run_id, ' ', 2) FROM gnl_django_run"
    with connection.cursor() as cursor:
        cursor.execute(clock.render(owned.following(source), vendor()))
    check_followed()
    Run.objects.all().delete()
    fill()
    with connection.cursor() as cursor:
        cursor.execute(clock.render(owned.reviving("SELECT run_id FROM gnl_django_run"), vendor()))
    check_revived()
