"""What the interface gives every journal: statements with a clock, short transactions."""

import pytest
from django.db import OperationalError, connection, transaction

from gnl_django.core import clock
from gnl_django.runs.journal import journal_for
from gnl_django.runs.journal.base import LOST, Journal, Recorded, Written
from tests.conformance.conftest import NOON
from tests.conformance.support_runs import make_run, run_row

pytestmark = pytest.mark.django_db(transaction=True)


def test_statements_take_the_clock_of_the_tests(frozen: clock.Override) -> None:
    journal = journal_for("default")
    make_run()
    assert journal.change("UPDATE gnl_django_run SET updated_at={now} WHERE run_id = 'r1'") == 1
    assert run_row().updated_at == NOON
    assert journal.rows("SELECT run_id FROM gnl_django_run WHERE id = %(id)s", {"id": 0}) == []


def test_a_transaction_of_ours_is_whole() -> None:
    journal = journal_for("default")

    def half() -> None:
        make_run()
        raise LookupError

    with pytest.raises(LookupError):
        journal.own(half)
    assert journal.rows("SELECT id FROM gnl_django_run") == []
    assert journal.own(lambda: connection.in_atomic_block) is True


def test_inside_the_callers_it_is_a_savepoint_and_not_repeated() -> None:
    journal, calls = journal_for("default"), []

    def fails() -> None:
        calls.append(1)
        make_run()
        raise OperationalError("of whatever sort")

    with transaction.atomic():
        with pytest.raises(OperationalError):
            journal.own(fails)
        make_run("r2")
    assert (len(calls), journal.rows("SELECT run_id FROM gnl_django_run")) == (1, [("r2",)])


def test_the_interface_cannot_be_used_by_itself() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Journal("default")  # type: ignore[abstract]


def test_what_is_said_of_rows_has_defaults() -> None:
    assert Written(held=False, cancel=False, changed=False, pk=None) == LOST
    assert Recorded(1, "s", 1, "done", "1").age == 0.0
