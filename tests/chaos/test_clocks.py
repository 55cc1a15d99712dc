"""F9: workers whose clocks are wrong by an hour, made by libfaketime (reliability.md 4, 6.2)."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection

from gnl_django.models import Attempt, Job
from tests.chaos.conftest import Give
from tests.chaos.test_failpoints import expire_a_claim
from tests.checkers import check_all
from tests.history import Recorder
from tests.procs import Proc
from tests.support import wait_until
from tests.zygote import Zygote

LIBRARY = next(iter(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")), None)

REASON = "SQLite has no clock but that of the process, and no server on another machine"

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.postgres(REASON),
    pytest.mark.mysql(REASON),
    pytest.mark.skipif(
        LIBRARY is None, reason="needs libfaketime (Debian: apt-get install libfaketime)"
    ),
]


@pytest.fixture(params=["+1h", "-1h"])
def wrong(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Zygote]:
    """Make children whose clock is wrong; only the clock that tells the time of day."""
    zygote = Zygote(
        tmp_path,
        {
            "LD_PRELOAD": str(LIBRARY),
            "FAKETIME": request.param,
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_RESET": "1",
        },
    )
    yield zygote
    zygote.close()


@pytest.mark.row("queue", "C76")
@pytest.mark.row("guarantees", "G8")
def test_a_worker_whose_clock_is_wrong_by_an_hour_changes_nothing(
    wrong: Zygote, give_job: Give, recorder: Recorder
) -> None:
    def start(name: str, *args: object) -> Proc:
        return wrong.run(
            f"tests.chaos.run:{name}",
            *args,
            env={"GNL_TEST_HISTORY": str(recorder.directory)},
            database={"NAME": connection.settings_dict["NAME"]},
        )

    expire_a_claim(give_job)
    give_job("held", "wait", seconds=2.5)  # longer than its lease
    give_job("fails", "fail")
    give_job("later", delay=0.5)
    far = give_job("far", delay=1800.0)
    skewed = start("worker", {"ttl": 2.0, "poll": 0.05, "max_poll": 0.2, "name": "skewed"})
    other = start("worker", {"ttl": 2.0, "poll": 0.05, "max_poll": 0.2, "name": "other"})
    wait_until(
        lambda: not Job.objects.exclude(id=far).filter(finished_at=None),
        30,
        describe=lambda: skewed.output() + other.output(),
    )
    hours = start("tell_skew")
    assert hours.wait() == 0, hours.output()
    assert abs(float(hours.output().split()[-1])) > 3_500
    for proc in (skewed, other):
        proc.term()
        assert proc.wait() == 0
    check_all(recorder.history(faulted=True, ttl=2.0)).assert_green()
    assert Job.objects.get(id=far).state == "scheduled"
    assert Attempt.objects.filter(outcome="lease_lost").count() == 1
