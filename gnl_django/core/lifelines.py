"""How long our own connections wait for a network that has gone silent (reliability.md 6.2, F18).

Called at the start of a control thread, a heartbeat and a listener. Only the connection of that
thread is concerned: callers and handlers connect as the project has configured it, and what the
project has set for itself is kept here too.
"""

from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

#: Seconds for a connection to be made.
CONNECT = 5
#: Seconds after which a peer that says nothing more counts as dead; without it about 15 minutes.
SILENCE = 30

_MYSQL_DRIVERS = {"MySQLdb", "pymysql"}


def impatient(connection: BaseDatabaseWrapper) -> None:
    """Let the connections that this thread's wrapper opens from now on notice a dead peer.

    Does nothing on SQLite and with a pool of the driver's, whose connections belong to everybody.
    """
    options: dict[str, Any] = connection.settings_dict.get("OPTIONS") or {}
    if options.get("pool"):
        return
    if limits := _limits(connection):
        # The wrapper's dictionaries are shared by all threads: it gets its own.
        connection.settings_dict = {
            **connection.settings_dict,
            "OPTIONS": {**limits, **options},
        }


def _limits(connection: BaseDatabaseWrapper) -> dict[str, int]:
    if connection.vendor == "postgresql":
        return {
            "connect_timeout": CONNECT,
            "tcp_user_timeout": SILENCE * 1_000,  # what was sent and is not acknowledged
            "keepalives": 1,  # and when nothing was sent
            "keepalives_idle": max(1, SILENCE // 3),
            "keepalives_interval": max(1, SILENCE // 6),
            "keepalives_count": 4,
        }
    driver = getattr(getattr(connection, "Database", None), "__name__", "")
    if connection.vendor == "mysql" and driver in _MYSQL_DRIVERS:
        return {"connect_timeout": CONNECT, "read_timeout": SILENCE, "write_timeout": SILENCE}
    return {}
