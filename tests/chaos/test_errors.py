"""F6, F13, F20: the server raises errors of every class while a worker works (reliability 2.5)."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gnl_django import Worker, enqueue
from gnl_django.core.db import Fault, fault_of
from gnl_django.models import Attempt, Job
from tests.chaos import telling
from tests.chaos.conftest import Give
from tests.chaos.errors import server_fault
from tests.chaos.run import mark
from tests.checkers import check_all
from tests.history import Recorder
from tests.support import vendor, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

CODES = {
    "postgresql": {"full": "53100", "readonly": "25006", "timeout": "57014", "other": "XX000"},
    "mysql": {"full": "1114", "readonly": "1290", "timeout": "1969", "other": "1815"},
    "sqlite": {"full": "FULL", "readonly": "READONLY"},
}
SAID = {
    "full": "the database does not serve",
    "readonly": "the database does not serve",
    "timeout": "Transient database error",
    "other": "a pass failed and the loop goes on",
}
CLASSES = {"full": Fault.UNAVAILABLE, "readonly": Fault.UNAVAILABLE, "timeout": Fault.TRANSIENT}


@contextmanager
def started() -> Iterator[Worker]:
    """Run a worker of this process for the block."""
    worker = Worker(ttl=30, poll=0.02, max_poll=0.1, concurrency=4)
    telling.worker_starts()
    worker.start()
    try:
        yield worker
    finally:
        worker.stop(30)


@pytest.mark.row("queue", "C106")
@pytest.mark.row("reliability", "6")
@pytest.mark.row("guarantees", "G9")
@pytest.mark.parametrize("how", ["full", "readonly", "timeout", "other"])
def test_a_worker_outlives_an_error_of_the_server_and_keeps_every_outcome(
    how: str, recorder: Recorder, give_job: Give, caplog: pytest.LogCaptureFixture
) -> None:
    if how not in CODES[vendor()]:
        return  # SQLite has no other errors that pass
    held = [give_job(f"held-{n}", "hold") for n in range(2)]
    failing = give_job("failing", "big")
    with server_fault(CODES[vendor()][how]) as server, started() as worker:
        wait_until(lambda: len(recorder.history().told("start")) >= 3, 40)
        wait_until(lambda: Job.objects.get(id=failing).state != "running", 40)
        server.on()
        (recorder.directory / "gate").touch()
        if how != "full" or vendor() != "sqlite":  # a full file may still have room in its pages
            wait_until(lambda: SAID[how] in caplog.text, 40, describe=lambda: caplog.text[-2000:])
            with pytest.raises(Exception) as raised:  # noqa: PT011 - the driver's own class
                enqueue("chaos.work", mark("refused")["payload"])
            assert fault_of(raised.value) is CLASSES.get(how, Fault.OTHER)
            assert {Job.objects.get(id=job).state for job in held} == {"running"}
        server.off()
        wait_until(lambda: not Job.objects.filter(finished_at=None), 30)
        wait_until(lambda: worker.metrics().active == 0)
    assert not Attempt.objects.exclude(outcome="failed").exists()
    assert Job.objects.count() == 3
    check_all(recorder.history(faulted=True, ttl=30)).assert_green()
