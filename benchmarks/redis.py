"""A private Redis for Celery: the machine's `redis-server` on a free port, nothing written to disk.

The bench starts it only when the peer takes part. As most run it as a broker: no append-only file.
"""

import shutil
import signal
import socket
from collections.abc import Mapping
from typing import ClassVar

from testproject.private_server import HOST, PrivateServer, ServerError


def missing() -> str:
    """Return why there is no Redis here, or the empty string."""
    if shutil.which("redis-server"):
        return ""
    return "Redis is missing. Debian: apt-get install redis-server"


class PrivateRedis(PrivateServer):
    """Stop modes: fast, immediate."""

    label = "Redis"
    user_names = ("redis", "nobody")
    signals: ClassVar[Mapping[str, signal.Signals]] = {
        "fast": signal.SIGTERM,
        "immediate": signal.SIGKILL,
        "kill": signal.SIGKILL,
    }

    def url(self, database: str = "0") -> str:
        """Return the URL of one of its numbered databases."""
        return f"redis://{HOST}:{self.port}/{database}"

    def create(self, database: str) -> None:
        """Nothing: databases are there."""

    def commands(self) -> int:
        """Return how many commands the server has carried out, this question among them."""
        for line in self._info("stats").splitlines():
            if line.startswith("total_commands_processed:"):
                return int(line.partition(":")[2])
        raise ServerError("Redis does not say how many commands it has carried out")

    def version(self) -> str:
        """Return the server's version."""
        lines = self._info("server").splitlines()
        return next(line.partition(":")[2] for line in lines if line.startswith("redis_version:"))

    def _info(self, section: str) -> str:
        """Ask INFO; the answer is `$length`, then so many bytes."""
        with socket.create_connection((HOST, self.port), timeout=5) as connection:
            connection.sendall(f"INFO {section}\r\n".encode())
            with connection.makefile("rb") as answer:
                length = int(answer.readline()[1:])
                return answer.read(length).decode()

    def _initialise(self) -> None:
        self._run(["mkdir", "-p", str(self.data)])

    def _command(self) -> list[str]:
        server = shutil.which("redis-server")
        if server is None:
            raise ServerError(missing())
        options = {
            "port": str(self.port),
            "bind": HOST,
            "dir": str(self.data),
            "save": "",
            "appendonly": "no",
            "daemonize": "no",
            "logfile": "",
        }
        return [server, *(part for name, value in options.items() for part in (f"--{name}", value))]

    def _ready(self) -> bool:
        return "Ready to accept connections" in self._new_log()
