"""A private PgBouncer in transaction mode before a PostgreSQL server of the tests (queue.md R51).

Every transaction is given the server connection that was longest idle (`server_round_robin`), so
that anything which counts on a session meets another one at once.
"""

import contextlib
import os
import shutil
import signal
import socket
from collections.abc import Mapping
from typing import ClassVar

from testproject.private_server import HOST, PrivateServer, ServerError

PACKAGE = "pgbouncer"

CONFIG = """
[databases]
* = host={host} port={server} user={user}
[pgbouncer]
listen_addr = {host}
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
server_round_robin = 1
default_pool_size = 20
max_client_conn = 500
"""


class PrivatePgBouncer(PrivateServer):
    """PgBouncer on a free port before the server at `port`; ends with the program."""

    label = "PgBouncer"
    user_names = ("nobody",)
    signals: ClassVar[Mapping[str, signal.Signals]] = {
        "fast": signal.SIGINT,
        "immediate": signal.SIGTERM,
        "kill": signal.SIGKILL,
    }

    def __init__(self, port: int, *, user: str = "postgres") -> None:
        super().__init__()
        self._server = port
        self._user = user

    def url(self, database: str) -> str:
        """Return a DATABASE_URL for `database` through the pooler."""
        return f"postgres://{self._user}@{HOST}:{self.port}/{database}"

    def create(self, database: str) -> None:
        """Refuse: databases are made at the server itself."""
        raise ServerError("a pooler has no databases of its own")

    def _initialise(self) -> None:
        """Nothing: the configuration names the port, which is known at the launch."""

    def _command(self) -> list[str]:
        config = CONFIG.format(host=HOST, server=self._server, user=self._user, port=self.port)
        path = self.directory / "pgbouncer.ini"
        path.write_text(config)
        return [binary(), str(path)]

    def _ready(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((HOST, self.port), 1):
            return "process up" in self._new_log()
        return False


def binary() -> str:
    """Return the path of pgbouncer; servers live in sbin, not on every PATH."""
    found = shutil.which(PACKAGE, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))
    if found is None:
        raise ServerError(f"PgBouncer is missing. Debian: apt-get install {PACKAGE}")
    return found


def missing() -> str:
    """Return what is missing to run PgBouncer here, as a sentence, or the empty string."""
    try:
        binary()
    except ServerError as error:
        return str(error)
    return ""
