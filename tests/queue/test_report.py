"""A worker's numbers as its row shows them."""

from threading import Event
from typing import Any

import pytest

from gnl_django.core.fleet import Numbers
from gnl_django.queue.report import Report
from tests.conformance import support_claim as s
from tests.conformance.conftest import Declare
from tests.support import wait_until


def report_of(worker: Any) -> Report:
    found: Report = worker._report
    return found


@pytest.mark.django_db
def test_a_fresh_worker_reports_its_room_and_kinds(declare: Declare) -> None:
    declare(s.KIND)
    with s.employed(concurrency=7, kinds=[s.KIND]) as worker:
        numbers = report_of(worker)()
    assert (numbers.kinds, numbers.concurrency) == ((s.KIND,), 7)
    assert numbers.rss_kib is None or numbers.rss_kib > 1_000
    assert (numbers.oldest_age, numbers.pass_age, numbers.error_age) == (None, None, None)


@pytest.mark.django_db(transaction=True)
def test_what_runs_what_is_done_and_what_failed_is_counted(declare: Declare) -> None:
    inside, go_on = Event(), Event()

    def work(payload: Any) -> None:
        if payload == "fail":
            raise ValueError("no")
        if payload == "hold":
            inside.set()
            assert go_on.wait(s.DEADLINE)

    kind = declare(s.KIND, work, max_attempts=2, retry_delay=0)
    kind.enqueue("fail")
    kind.enqueue("end")
    with s.employed(poll=0.02, max_poll=0.02, concurrency=3) as worker:
        assert worker.run_until_idle() == 3
        assert report_of(worker)().pass_age is not None
        kind.enqueue("hold")
        worker.start()
        assert inside.wait(s.DEADLINE)
        wait_until(lambda: worker.metrics().active == 1)
        numbers = report_of(worker)()
        assert (numbers.active, numbers.claimed) == (1, 4)
        # Each attempt that failed counts, whether the job is tried again or dead.
        assert (numbers.completed, numbers.failed) == (1, 2)
        assert numbers.oldest_age is not None
        assert numbers.oldest_age >= 0
        worker.drain()
        assert report_of(worker)().draining is True
        go_on.set()


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("first\nsecond"), "ValueError: first"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
def test_the_last_error_of_the_loop_is_its_class_and_first_line(error: Any, text: str) -> None:
    with s.employed() as worker:
        report = report_of(worker)
        report.pass_failed(error)
        numbers: Numbers = report()
    assert numbers.last_error == text
    assert numbers.error_age is not None
