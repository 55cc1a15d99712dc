"""A proxy in front of PostgreSQL that counts the statements a client sends.

The private server has no pg_stat_statements, and a statement log would cost the time it measures;
so the idle worker alone connects through this proxy. It reads the client's side of the protocol:
each Execute and each simple Query is one statement, pipelined or not, with its text.
"""

import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

# request codes of the start-up phase that ask for encryption; the proxy answers "no"
_ENCRYPTION_REQUESTS = (80877103, 80877104)
_LITERAL = re.compile(r"'(?:[^']|'')*'|--[^\n]*|\b\d+\b")
LONGEST_TEXT = 600


class Wire:
    """Listen on a free loopback port and pass every connection on to `target`."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._lock = threading.Lock()
        self._statements: Counter[str] = Counter()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listener]
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def take(self) -> Counter[str]:
        """Return the statements counted since the last call, by text."""
        with self._lock:
            taken, self._statements = self._statements, Counter()
        return taken

    def close(self) -> None:
        """End every connection and stop listening."""
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = self._connect()
            except OSError:
                return
            for each in (client, server):
                if each.family in (socket.AF_INET, socket.AF_INET6):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._sockets += [client, server]
            threading.Thread(target=self._forward, args=(client, server), daemon=True).start()
            threading.Thread(target=self._back, args=(server, client), daemon=True).start()

    def _connect(self) -> socket.socket:
        host, port = self._target
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.connect(f"{host}/.s.PGSQL.{port}")
        return server

    def _back(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                client.sendall(data)
            client.shutdown(socket.SHUT_WR)

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        frontend = _Frontend(self._count)
        with suppress(OSError):
            while data := client.recv(65536):
                passed, refusals = frontend.feed(data)
                for _ in range(refusals):
                    client.sendall(b"N")
                server.sendall(passed)
            server.shutdown(socket.SHUT_WR)

    def _count(self, text: str) -> None:
        with self._lock:
            self._statements[text] += 1


class _Frontend:
    """The client's half of one connection, cut into messages."""

    def __init__(self, count: Callable[[str], None]) -> None:
        self._count = count
        self._buffer = b""
        self._started = False
        self._prepared: dict[bytes, str] = {}
        self._portals: dict[bytes, str] = {}

    def feed(self, data: bytes) -> tuple[bytes, int]:
        """Return what to pass on, and how many encryption requests to refuse."""
        self._buffer += data
        passed: list[bytes] = []
        refusals = 0
        while (message := self._next()) is not None:
            if self._started:
                self._see(message[:1], message[5:])
            else:
                code: int = struct.unpack("!I", message[4:8])[0]
                if code in _ENCRYPTION_REQUESTS:
                    refusals += 1
                    continue
                self._started = True
            passed.append(message)
        return b"".join(passed), refusals

    def _next(self) -> bytes | None:
        head = 1 if self._started else 0  # start-up messages carry no type byte
        if len(self._buffer) < head + 4:
            return None
        length: int = head + struct.unpack("!I", self._buffer[head : head + 4])[0]
        if len(self._buffer) < length:
            return None
        message, self._buffer = self._buffer[:length], self._buffer[length:]
        return message

    def _see(self, kind: bytes, body: bytes) -> None:
        if kind == b"Q":
            self._count(_text(body))
        elif kind == b"P":
            name, rest = body.split(b"\0", 1)
            self._prepared[name] = _text(rest)
        elif kind == b"B":
            portal, name, _ = body.split(b"\0", 2)
            self._portals[portal] = self._prepared.get(name, "?")
        elif kind == b"E":
            self._count(self._portals.get(body.split(b"\0", 1)[0], "?"))


def _text(body: bytes) -> str:
    """Return the statement on one line, without its literals: they make equal statements differ."""
    text = body.split(b"\0", 1)[0].decode(errors="replace")
    return " ".join(_LITERAL.sub("?", text).split())[:LONGEST_TEXT]
