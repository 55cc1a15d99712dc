"""`manage.py gnl_queue`: pause, resume, list."""

import getpass
from io import StringIO
from typing import NoReturn

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from gnl_django.queue.models import QueueState

pytestmark = pytest.mark.django_db(transaction=True)


def run(*args: str) -> str:
    out = StringIO()
    call_command("gnl_queue", *args, stdout=out)
    return out.getvalue()


def test_a_queue_is_paused_by_the_systems_user_and_resumed() -> None:
    assert run("pause", "mail", "--reason", "vendor down") == "Queue mail is paused.\n"
    assert run("pause", "mail") == "Queue mail was paused already.\n"
    row = QueueState.objects.get()
    assert (row.queue, row.org, row.pause_reason) == ("mail", "", "vendor down")
    assert row.paused_by == getpass.getuser()
    assert run("resume", "mail") == "Queue mail goes on.\n"
    assert run("resume", "mail") == "Queue mail was not paused.\n"


def test_a_lane_is_paused_in_one_queue_or_in_all() -> None:
    assert run("pause", "mail", "--org", "acme") == "Lane acme of queue mail is paused.\n"
    assert run("pause", "*", "--org", "acme") == "Lane acme of queue * is paused.\n"
    assert run("resume", "*", "--org", "acme") == "Lane acme of queue * goes on.\n"


def test_the_list_has_every_queue_and_the_paused_lanes() -> None:
    run("pause", "mail", "--reason", "vendor down")
    run("pause", "high", "--org", "acme")
    run("pause", "high")
    run("resume", "high")
    run("pause", "high", "--org", "open")
    run("resume", "high", "--org", "open")
    lines = [line.split("\t") for line in run("list").splitlines()]
    user = getpass.getuser()
    assert [place for place, _ in lines] == ["high", "high / acme", "mail"]
    assert lines[0][1] == "open"
    assert lines[1][1].startswith("paused since 20")
    assert lines[1][1].endswith(f"by {user}")
    assert lines[2][1].endswith(f"by {user}: vendor down")


def test_a_wrong_name_is_an_error_with_its_reason() -> None:
    for words in (["pause", "a b"], ["pause", "*"], ["resume", "mail", "--org", " a"]):
        with pytest.raises(CommandError, match=r"queue|org"):
            run(*words)


def test_a_user_without_a_name_is_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> NoReturn:
        raise KeyError("uid not found")

    monkeypatch.setattr(getpass, "getuser", unknown)
    run("pause", "mail")
    assert QueueState.objects.get().paused_by == ""
    assert run("list").split("\t")[1].count(" by ") == 0
