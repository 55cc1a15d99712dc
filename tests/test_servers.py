"""The private servers: they start, stop, restart, keep apart, and never outlive their program."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import psycopg
import pytest

from testproject.private_server import PrivateServer, ServerError, free_port
from testproject.servers import PrivateMariaDB, PrivatePostgres
from tests.procs import Spawner
from tests.support import vendor, wait_until

pytestmark = [
    pytest.mark.postgres("SQLite has no server"),
    pytest.mark.mysql("SQLite has no server"),
]


@pytest.fixture
def kind() -> type[PrivateServer]:
    """Return the server of this run's database."""
    return PrivatePostgres if vendor() == "postgresql" else PrivateMariaDB


@pytest.fixture
def server(kind: type[PrivateServer]) -> Iterator[PrivateServer]:
    with kind() as server:
        yield server


def rows(server: PrivateServer, query: str) -> list[tuple[str, ...]]:
    """Return the rows of `query`, on a connection of its own."""
    connection: Any
    if isinstance(server, PrivatePostgres):
        connection = psycopg.connect(server.dsn("postgres"))
    else:
        import MySQLdb

        connection = MySQLdb.connect(host="127.0.0.1", port=server.port, user="root")
    with contextlib.closing(connection), contextlib.closing(connection.cursor()) as cursor:
        cursor.execute(query)
        return list(cursor.fetchall())


def databases(server: PrivateServer) -> set[str]:
    """Return the names of the server's databases."""
    if isinstance(server, PrivatePostgres):
        return {row[0] for row in rows(server, "SELECT datname FROM pg_database")}
    return {row[0] for row in rows(server, "SHOW DATABASES")}


def test_a_started_server_creates_databases_and_names_them_in_its_url(
    server: PrivateServer,
) -> None:
    server.create("one")
    assert "one" in databases(server)
    url = urlsplit(server.url("one"))
    assert (url.hostname, url.port, url.path) == ("127.0.0.1", server.port, "/one")


def test_a_restart_in_every_mode_keeps_the_data_and_the_port(server: PrivateServer) -> None:
    server.create("kept")
    port, pids = server.port, {server.pid}
    for mode in server.signals:
        server.restart(mode)
        assert server.port == port
        assert server.pid not in pids
        pids.add(server.pid)
        assert "kept" in databases(server)
    server.halt("fast")
    assert not server.running
    assert "kept" in databases(server.start())


def test_several_servers_run_side_by_side(kind: type[PrivateServer]) -> None:
    with kind() as one, kind() as two:
        one.create("first")
        assert one.port != two.port
        assert "first" not in databases(two)


def test_a_stop_removes_the_servers_own_directory_and_keeps_a_given_one(
    kind: type[PrivateServer],
) -> None:
    with kind() as server:
        own, pid = server.directory, server.pid
    assert not own.exists()
    assert not psutil.pid_exists(pid)
    # Under the directory of another server: open to the servers' ordinary user.
    with kind() as host:
        given = host.directory / "given"
        with kind(given) as server:
            server.create("kept")
        assert not psutil.pid_exists(server.pid)
        with kind(given) as server:
            assert "kept" in databases(server)


def test_a_server_that_ended_by_itself_can_be_started_again(server: PrivateServer) -> None:
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: not server.running)
    assert databases(server.start())


def test_a_durable_server_keeps_what_it_commits_and_a_volatile_one_need_not(
    kind: type[PrivateServer],
) -> None:
    if kind is PrivatePostgres:
        query = "SELECT current_setting('fsync') = 'on'"
    else:
        query = "SELECT @@innodb_flush_log_at_trx_commit = 1"
    with kind(durable=True) as durable, kind() as volatile:
        assert rows(durable, query) == [(1,)]
        assert rows(volatile, query) == [(0,)]


def test_further_settings_reach_postgresql() -> None:
    server = PrivatePostgres(settings={"work_mem": "5MB"})
    with server:
        assert rows(server, "SHOW work_mem") == [("5MB",)]


def test_a_server_that_cannot_start_shows_its_log_and_leaves_nothing(
    server: PrivateServer, kind: type[PrivateServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(server.directory))
    nonsense = {"no_such_setting": "1"} if kind is PrivatePostgres else ["--no-such-setting"]
    monkeypatch.setattr(kind, "volatile", nonsense)
    broken = kind()
    with pytest.raises(ServerError, match=r"no.such.setting"):
        broken.start()
    assert not broken.running
    assert not list(server.directory.glob("gnl-*"))


def test_a_server_whose_port_was_taken_in_between_takes_another(
    server: PrivateServer, kind: type[PrivateServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = iter([server.port, free_port()])
    monkeypatch.setattr("testproject.private_server.free_port", lambda: next(ports))
    with kind() as second:
        assert second.port != server.port
        assert databases(second)


def test_no_server_and_no_directory_outlives_a_killed_program(
    kind: type[PrivateServer], tmp_path: Path
) -> None:
    spawner = Spawner("", tmp_path)
    code = (
        "import threading\n"
        f"from testproject.servers import {kind.__name__} as Server\n"
        "server = Server().start()\n"
        "print('server', server.pid, server.directory, flush=True)\n"
        "threading.Event().wait(60)\n"
    )
    try:
        program = spawner([], python=["-c", code])
        _, pid, directory = program.wait_line("server ").split()
        assert psutil.pid_exists(int(pid))
        program.kill()
        wait_until(lambda: not psutil.pid_exists(int(pid)), describe=lambda: f"pid {pid} lives")
        wait_until(lambda: not Path(directory).exists(), describe=f"{directory} is there")
    finally:
        spawner.close()
