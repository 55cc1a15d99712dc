"""F9: workers whose clocks are wrong by an hour or a month, made by libfaketime (reliability 6.2).

SQLite has no clock but that of the process that asks, and all processes of a file are on one
machine. So what can be wrong there is the machine's clock, for all of them alike; what must hold is
that nothing but differences of that clock counts.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection

from gnl_django.core import clock
from gnl_django.models import Attempt, Job
from tests.chaos.run import mark
from tests.checkers import check_all
from tests.history import Recorder
from tests.procs import Proc
from tests.run import in_ci
from tests.support import wait_until
from tests.zygote import Zygote

LIBRARY = next(iter(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")), None)
#: The clocks of two workers beside each other; on SQLite that of everybody.
CLOCKS = [("+1h", "-30d"), ("-1h", "+30d")]
if connection.vendor == "sqlite":
    long = pytest.mark.chaos
    CLOCKS = [("+30d",), ("-1h",), *(pytest.param((by,), marks=long) for by in ("+1h", "-30d"))]

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(
        LIBRARY is None and not in_ci(),
        reason="needs libfaketime (Debian: apt-get install libfaketime)",
    ),
]


class Skewed:
    """Makes children whose clock is wrong; only the clock that tells the time of day."""

    def __init__(self, directory: Path, recorder: Recorder, by: str) -> None:
        assert LIBRARY is not None, "libfaketime is missing (Debian: apt-get install libfaketime)"
        directory.mkdir()
        self._recorder = recorder
        self.zygote = Zygote(
            directory,
            {
                "LD_PRELOAD": str(LIBRARY),
                "FAKETIME": by,
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                "FAKETIME_DONT_RESET": "1",
            },
        )

    def start(self, name: str, *args: object) -> Proc:
        """Start `tests.chaos.run:<name>`."""
        return self.zygote.run(
            f"tests.chaos.run:{name}",
            *args,
            env={"GNL_TEST_HISTORY": str(self._recorder.directory)},
            database={"NAME": connection.settings_dict["NAME"]},
        )

    def worker(self, name: str) -> Proc:
        """Start a worker."""
        return self.start("worker", {"ttl": 2.0, "poll": 0.05, "max_poll": 0.2, "name": name})

    def ahead(self) -> float:
        """Return by how many seconds this process's time of day is beyond ours."""
        told = self.start("tell_time")
        assert told.wait() == 0, told.output()
        return float(told.output().split()[-1]) - clock.wall().timestamp()


@pytest.fixture(params=CLOCKS, ids="/".join)
def clocks(
    request: pytest.FixtureRequest, tmp_path: Path, recorder: Recorder
) -> Iterator[list[Skewed]]:
    """Make two machines whose clocks are wrong, in opposite directions; on SQLite one."""
    made = [Skewed(tmp_path / by, recorder, by) for by in request.param]
    yield made
    for skewed in made:
        skewed.zygote.close()


@pytest.mark.row("queue", "C76")
@pytest.mark.row("guarantees", "G8")
def test_workers_whose_clocks_are_wrong_change_nothing(
    clocks: list[Skewed], recorder: Recorder
) -> None:
    jobs = [
        mark("held", "wait", seconds=2.5),  # longer than its lease
        mark("fails", "fail"),
        mark("later", delay=0.5),
        mark("far", delay=1800.0),
    ]
    calls = [{"f": "enqueue", "value": value} for value in (mark("expired"), *jobs)]
    # A machine with a wrong clock gives the work too.
    for name, *args in [
        ("produce", str(recorder.client.path), calls[:1]),
        ("claim_and_vanish",),
        ("produce", str(recorder.client.path), calls[1:]),
    ]:
        child = clocks[0].start(name, *args)
        assert child.wait() == 0, child.output()
    workers = [clocks[0].worker("one"), clocks[-1].worker("two")]
    wait_until(
        lambda: Job.objects.exclude(finished_at=None).count() == 4,
        60,
        describe=lambda: [worker.output() for worker in workers],
    )
    assert all(abs(skewed.ahead()) > 3_500 for skewed in clocks)
    for worker in workers:
        worker.term()
        assert worker.wait() == 0
    check_all(recorder.history(faulted=True, ttl=2.0)).assert_green()
    assert Job.objects.get(payload__contains="far").state == "scheduled"
    assert list(Attempt.objects.values_list("outcome", flat=True).order_by("outcome")) == [
        "failed",
        "lease_lost",
    ]
