"""The worker's own wiring: hand-over between its threads."""

from threading import Barrier, Event

import pytest

from gnl_django import NewJob, Worker, enqueue_many
from tests.conformance.conftest import Declare
from tests.support import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def test_all_jobs_of_a_pass_start_together_though_slots_are_left_free(declare: Declare) -> None:
    """A hand-off wakes two idle slots only; the others must not be forgotten (R10)."""
    together = Barrier(7, timeout=20)
    declare("meet", lambda payload: together.wait() and None, max_attempts=1)
    declare("warm", lambda payload: release.wait(20) and None)
    release = Event()
    worker = Worker(concurrency=8, poll=20, max_poll=20)
    worker.start()
    try:
        enqueue_many([NewJob("warm") for _ in range(8)])  # every slot has its thread, and is idle
        wait_until(lambda: worker.metrics().active == 8)
        release.set()
        wait_until(lambda: worker.metrics().completed == 8)
        enqueue_many([NewJob("meet") for _ in range(7)])
        wait_until(lambda: worker.metrics().completed == 15)
    finally:
        release.set()
        assert worker.stop(30)
