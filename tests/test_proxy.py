"""The lying proxy lies as it is told."""

import socket
import threading
from collections.abc import Iterator

import pytest

from tests.proxy import Proxy
from tests.support import wait_until


@pytest.fixture
def echo() -> Iterator[tuple[str, int]]:
    """Run a server that answers each line with itself."""
    server = socket.create_server(("127.0.0.1", 0))
    seen: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            seen.append(connection)
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    def answer(connection: socket.socket) -> None:
        try:
            while piece := connection.recv(1000):
                connection.sendall(piece)
        except OSError:
            pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield server.getsockname()
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    for connection in seen:
        connection.close()
    thread.join(5)


def call(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), 5)


def test_it_passes_delays_swallows_and_resets(echo: tuple[str, int]) -> None:
    with Proxy(echo) as proxy, call(proxy) as client:
        client.sendall(b"one")
        assert client.recv(10) == b"one"
        proxy.delay(0.05)
        client.sendall(b"two")
        assert client.recv(10) == b"two"
        proxy.blackhole()
        client.sendall(b"three")
        client.settimeout(0.1)
        with pytest.raises(TimeoutError):
            client.recv(10)
        proxy.reset()
        client.settimeout(5)
        with pytest.raises(ConnectionError):
            client.recv(10)


def test_it_cuts_after_so_many_bytes(echo: tuple[str, int]) -> None:
    with Proxy(echo) as proxy, call(proxy) as client:
        proxy.cut_after(6)
        client.sendall(b"12345")
        assert client.recv(10) == b"12345"
        client.sendall(b"6")
        with pytest.raises(ConnectionError):
            client.recv(10)
        assert proxy.struck.is_set()


def test_it_loses_the_answer_to_one_request(echo: tuple[str, int]) -> None:
    with Proxy(echo) as proxy:
        with call(proxy) as client:
            proxy.lose_answer(b"COMMIT")
            client.sendall(b"other")
            assert client.recv(10) == b"other"
            client.sendall(b"COMMIT")
            with pytest.raises(ConnectionError):
                client.recv(10)
        wait_until(proxy.struck.is_set)
        with call(proxy) as client:
            client.sendall(b"COMMIT")
            assert client.recv(10) == b"COMMIT"
