"""The whole demo as its user starts it, on this run's database."""

import re
import signal
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.parse import urlencode

import pytest

from gnl_django.models import Job
from testproject.library.background import ASK_KIND, KIND
from testproject.library.models import Document
from tests.procs import Proc, Spawner

LIMIT = 120


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {
        "DJANGO_SETTINGS_MODULE": "testproject.settings",
        "LIMIT": str(LIMIT),
        "DEMO_DIR": str(tmp_path / "demo"),
        "DB": "",
        "ONCE": "",
        "COLUMNS": "200",
    }


def start(spawn: Spawner, environ: dict[str, str], **options: str) -> Proc:
    return spawn([], python=["-m", "testproject.demo"], env={**environ, **options})


def test_once_works_the_queue_empty_and_sums_up(spawn: Spawner, environ: dict[str, str]) -> None:
    demo = start(spawn, environ, ONCE="1")
    code, output = demo.wait(90), demo.output()
    assert code == 0, output
    assert f"Enqueued {LIMIT} jobs" in output
    assert f"{LIMIT}/{LIMIT} finished" in output
    assert "jobs per second" in output
    assert "10th job finished" in output
    assert re.search(r"Which package defines the most classes\? \S+, with \d+ classes", output)
    states = set(Job.objects.values_list("state", flat=True))
    assert states <= {"succeeded", "dead"}
    indexed = Job.objects.filter(kind=KIND, state="succeeded").count()
    assert indexed == Document.objects.count()
    assert Job.objects.get(kind=ASK_KIND).state == "succeeded"


def test_the_admin_lets_the_printed_operator_in(spawn: Spawner, environ: dict[str, str]) -> None:
    demo = start(spawn, environ)
    line = demo.wait_line("Admin: ", 60)
    address, user, password = re.findall(r"(http\S+) \(user (\S+), password (\S+)\)", line)[0]
    demo.wait_line("10th job finished", 90)
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    page = browser.open(address, timeout=60).read().decode()
    token = re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', page)[0]
    form = {"csrfmiddlewaretoken": token, "username": user, "password": password}
    login = f"{address}login/?next=/admin/"
    browser.addheaders.append(("Referer", login))
    page = browser.open(login, urlencode(form).encode(), timeout=60).read().decode()
    assert "/admin/logout/" in page
    style = re.findall(r'href="(/static/admin/css/base\.css)"', page)[0]
    assert browser.open(address.replace("/admin/", style), timeout=60).status == 200
    demo.interrupt()
    assert demo.wait(60) == 0, demo.output()


def test_ctrl_c_before_the_end_stops_everything_and_loses_nothing(
    spawn: Spawner, environ: dict[str, str]
) -> None:
    demo = start(spawn, environ, ONCE="1", LIMIT="3000")
    demo.wait_line("succeeded=", 60, count=2)
    demo.interrupt()
    assert demo.wait(60) == 130, demo.output()
    assert not Job.objects.filter(state="running").exists()
    assert Job.objects.count() == 3000


def test_a_worker_that_dies_breaks_the_demo(spawn: Spawner, environ: dict[str, str]) -> None:
    import psutil

    demo = start(spawn, environ, ONCE="1", LIMIT="3000")
    demo.wait_line("succeeded=", 60, count=2)
    (worker,) = psutil.Process(demo.pid).children()
    worker.send_signal(signal.SIGKILL)
    assert demo.wait(60) == 1, demo.output()
    assert "the child worker ended with -9" in demo.output()


def test_a_wrong_option_is_named_and_nothing_is_started(
    spawn: Spawner, environ: dict[str, str]
) -> None:
    demo = start(spawn, environ, LIMIT="many")
    assert demo.wait(60) == 2
    assert "LIMIT=many" in demo.output()
    assert not Job.objects.exists()
