"""Choose and start the database of a test run: `pytest --db=sqlite|postgresql|mysql`.

A plugin (`-p tests.database` in pyproject.toml) and not part of conftest.py, because the settings
are read before any conftest is: pytest-django's hook runs inside the wrapper below. It sets
DATABASE_URL and leaves no server and no file behind.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit, urlunsplit

import pytest

from testproject.servers import PrivateMariaDB, PrivatePostgres, ServerError, mariadb_missing
from tests.pgbouncer import PrivatePgBouncer

VENDORS = ("sqlite", "postgresql", "mysql")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --db."""
    parser.getgroup("database").addoption(
        "--db",
        choices=VENDORS,
        default="sqlite",
        help="database of this run; a private server is started (TEST_MYSQL_URL: use that one)",
    )
    parser.getgroup("database").addoption(
        "--pgbouncer",
        action="store_true",
        help="with --db=postgresql: reach it through a PgBouncer in transaction mode, LISTEN off",
    )


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Iterator[None]:
    """Start the database before Django's settings are read."""
    options = early_config.known_args_namespace
    if not (options.help or options.version):
        if options.pgbouncer and options.db != "postgresql":
            raise pytest.UsageError("--pgbouncer goes with --db=postgresql")
        try:
            early_config.add_cleanup(_start(options.db, pooled=options.pgbouncer))
        except ServerError as error:
            raise pytest.UsageError(f"--db={options.db}: {error}") from None
    return (yield)


@pytest.hookimpl
def pytest_report_header(config: pytest.Config) -> str:
    """Say which database the run has."""
    return f"database: {config.getoption('db')} {os.environ.get('DATABASE_URL', '')}"


def _start(vendor: str, *, pooled: bool = False) -> Callable[[], object]:
    """Start `vendor`, point the environment at it, and return what ends it."""
    os.environ.pop("GNL_TEST_DATABASE", None)
    os.environ.pop("GNL_TEST_POOLED", None)
    if vendor == "sqlite":
        place = tempfile.mkdtemp(prefix="gnl-sqlite-")
        os.environ["DATABASE_URL"] = f"sqlite:///{place}/gnl.sqlite3"
        # A file: worker threads and child processes use it too.
        os.environ["GNL_TEST_DATABASE"] = f"{place}/test_gnl.sqlite3"
        return lambda: shutil.rmtree(place, ignore_errors=True)
    if vendor == "postgresql":
        postgres = PrivatePostgres().start()
        postgres.create("gnl")
        os.environ["DATABASE_URL"] = postgres.url("gnl")
        if not pooled:
            return lambda: postgres.stop("immediate")
        pooler = PrivatePgBouncer(postgres.port).start()
        os.environ["DATABASE_URL"] = pooler.url("gnl")
        os.environ["GNL_TEST_POOLED"] = "1"
        return lambda: (pooler.stop("immediate"), postgres.stop("immediate"))
    if url := os.environ.get("TEST_MYSQL_URL"):
        os.environ["DATABASE_URL"] = url
        # Somebody else's server: another run may be using it at the same time.
        os.environ["GNL_TEST_DATABASE"] = f"test_gnl_{os.getpid()}"
        return lambda: None
    if missing := mariadb_missing():
        raise pytest.UsageError(f"--db=mysql: {missing}, or set TEST_MYSQL_URL")
    mariadb = PrivateMariaDB().start()
    mariadb.create("gnl")
    os.environ["DATABASE_URL"] = mariadb.url("gnl")
    return lambda: mariadb.stop("immediate")


def with_database(url: str, name: str) -> str:
    """Return the DATABASE_URL `url` with the database `name` in place of its own."""
    if url.startswith("sqlite:"):
        return f"sqlite:///{name}"
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))
