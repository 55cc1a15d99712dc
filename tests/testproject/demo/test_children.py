"""The demo's child processes: started, seen to end, ended gently."""

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from testproject.demo.children import HOST, Children, answers, choose_port
from tests.support import wait_until


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Children]:
    environ = {**os.environ, "DJANGO_SETTINGS_MODULE": "testproject.settings"}
    with Children(tmp_path, environ) as started:
        yield started


def test_a_child_that_ends_is_seen_with_its_code_and_output(children: Children) -> None:
    children.start("wrong", "no_such_command")
    wait_until(children.ended, 20)
    assert children.ended() == {"wrong": 1}
    assert "no_such_command" in children.tail("wrong")


def test_the_web_server_answers_in_the_group_and_stops_on_sigterm(children: Children) -> None:
    port = choose_port(0)
    children.start("web", "runserver", "--noreload", f"{HOST}:{port}")
    wait_until(lambda: answers(port), 20, describe=lambda: children.tail("web"))
    assert os.getpgid(children.pid("web")) == children.pid("web") != os.getpgrp()
    assert children.stop() == {"web": -signal.SIGTERM}
    assert not answers(port)


def test_a_child_that_does_not_listen_is_killed_after_the_grace(children: Children) -> None:
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True)"
    children.start("deaf", "shell", "-c", f"{code}; signal.pause()")
    wait_until(lambda: "on" in children.tail("deaf"), 20)
    assert children.stop(grace=0.2) == {"deaf": -signal.SIGKILL}


def test_stopping_twice_is_no_error(children: Children) -> None:
    children.start("wrong", "no_such_command")
    wait_until(children.ended, 20)
    assert children.stop() == {"wrong": 1}
    assert children.stop() == {}


def test_a_port_that_is_taken_is_replaced_by_a_free_one() -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        wanted = taken.getsockname()[1]
        assert choose_port(wanted) != wanted
        assert answers(wanted)


def test_a_free_port_is_taken_as_wished() -> None:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        wanted = probe.getsockname()[1]
    assert choose_port(wanted) == wanted
