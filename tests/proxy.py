"""A TCP proxy on loopback that lies: it delays, swallows, resets, and loses the one answer.

Fault tests put it between a worker and its database (reliability F18). Each connection has a thread
for each direction; a change of mode counts for the bytes that come after it.
"""

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Callable
from typing import Self

RESET = struct.pack("ii", 1, 0)  # SO_LINGER of 0 seconds: close() sends RST
QUIET = 0.05  # seconds without a byte after which an answer counts as whole


class Proxy:
    """Listens on a port of its own and passes everything on to `address`, until told otherwise.

    Modes: `pass_on`, `delay(seconds)`, `blackhole` (accept, swallow, answer nothing), `reset` (all
    connections, now and new ones), `cut_after(n)` (reset once n more bytes went to the server),
    `lose_answer(text)` (the first request with `text` reaches the server, its answer is lost and
    the connection reset; later ones pass).
    """

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._mode = "pass"
        self._delay = 0.0
        self._left = 0
        self._text = b""
        self._closing = threading.Event()
        #: Set when an answer has been lost or a connection cut.
        self.struck = threading.Event()
        self._start(self._accept)

    @property
    def port(self) -> int:
        """The port to connect to."""
        return int(self._listener.getsockname()[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def pass_on(self) -> None:
        """Be honest."""
        self._mode = "pass"

    def delay(self, seconds: float) -> None:
        """Let every piece wait for `seconds`."""
        self._delay, self._mode = seconds, "delay"

    def blackhole(self) -> None:
        """Swallow everything and answer nothing, without an end of any connection."""
        self._mode = "blackhole"

    def reset(self) -> None:
        """Reset all connections, and every new one."""
        self._mode = "reset"
        with self._lock:
            sockets = list(self._sockets)
        for one in sockets:
            self._drop(one)

    def cut_after(self, count: int) -> None:
        """Reset a connection when `count` more bytes have gone to the server."""
        self._left, self._mode = count, "cut"

    def lose_answer(self, text: bytes) -> None:
        """Lose the answer to the next request that holds `text`."""
        self.struck.clear()
        self._text, self._mode = text, "lose"

    def close(self) -> None:
        """End everything."""
        self._closing.set()
        self.reset()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(5)

    def _start(self, work: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._mode == "reset":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                client.close()
                continue
            try:
                server = socket.create_connection(self._address, 5)
            except OSError:
                client.close()
                continue
            with self._lock:
                self._sockets |= {client, server}
            self._start(self._requests, client, server)
            self._start(self._answers, server, client)

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        def forward(piece: bytes) -> bool:
            if self._mode == "cut":
                self._left -= len(piece)
                if self._left <= 0:
                    self.struck.set()
                    return False
            if self._mode == "lose" and self._text in piece:
                self._mode = "losing"
                server.sendall(piece)
                self._pass_the_rest(client, server)
                # Before the mode: the other direction would pass the answer on.
                self._drop(client)
                self._drop(server)
                self._mode = "pass"
                self.struck.set()
                return False
            server.sendall(piece)
            return True

        self._pump(client, server, forward)

    def _answers(self, server: socket.socket, client: socket.socket) -> None:
        def forward(piece: bytes) -> bool:
            client.sendall(piece)
            return True

        self._pump(server, client, forward)

    def _pass_the_rest(self, client: socket.socket, server: socket.socket) -> None:
        """Pass on what still belongs to the request, until the server has answered all of it.

        Then it has committed. Nobody reads what it says.
        """
        for _ in range(200):
            if select.select([client], [], [], QUIET)[0]:
                piece = client.recv(65536)
                if not piece:
                    return
                server.sendall(piece)
            elif select.select([server], [], [], QUIET)[0]:
                return

    def _pump(
        self, source: socket.socket, other: socket.socket, forward: Callable[[bytes], bool]
    ) -> None:
        try:
            while True:
                if not select.select([source], [], [], 1.0)[0]:
                    continue
                if self._mode == "losing":  # the answer stays where it is
                    self._closing.wait(0.001)
                    continue
                piece = source.recv(65536)
                if not piece:
                    break
                if self._mode == "delay":
                    self._closing.wait(self._delay)
                if self._mode != "blackhole" and not forward(piece):
                    break
        except (OSError, ValueError):
            pass
        self._drop(source)
        self._drop(other)

    def _drop(self, one: socket.socket) -> None:
        with self._lock:
            self._sockets.discard(one)
        with contextlib.suppress(OSError):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RD)  # wakes who waits for it, tells the other side nothing
        with contextlib.suppress(OSError):
            one.close()
