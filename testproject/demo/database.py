"""Chooses the demo's database, starts a private server when asked, and migrates.

Called once, before Django is set up: the settings read DATABASE_URL when they are loaded.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testproject.demo.options import Options
from testproject.private_server import PrivateServer, ordinary_user, passable
from testproject.servers import PrivateMariaDB, PrivatePostgres

NAME = "demo"
KINDS: dict[str, type[PrivateServer]] = {"postgres": PrivatePostgres, "mariadb": PrivateMariaDB}


@contextmanager
def database(options: Options) -> Iterator[str]:
    """Set Django up on the chosen database, migrated; yield what to tell the operator about it.

    A private server lives as long as the context; its data stay in the demo's directory.
    """
    if options.server is None:
        file = options.directory / "db.sqlite3"
        os.environ["DATABASE_URL"] = options.database_url or f"sqlite:///{file}"
        _set_up(None)
        yield "the database of DATABASE_URL" if options.database_url else f"SQLite, {file}"
        return
    kind = KINDS[options.server]
    with kind(server_directory(kind, options.directory), durable=True) as server:
        os.environ["DATABASE_URL"] = server.url(NAME)
        _set_up(server)
        yield f"a private {server.label}, {server.url(NAME)}"


def server_directory(kind: type[PrivateServer], directory: Path) -> Path | None:
    """Return where the private server keeps its data; None for a temporary directory.

    Servers started by root run under an ordinary user, who cannot enter a checkout in root's home.
    """
    place = directory / kind.label.lower()
    if os.geteuid() == 0 and not passable(place, ordinary_user(kind.user_names)[0]):
        return None
    return place


def _set_up(server: PrivateServer | None) -> None:
    import django
    from django.core.management import call_command
    from django.db import OperationalError, connection

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    django.setup()
    if server is not None:
        try:
            connection.ensure_connection()
        except OperationalError:
            server.create(NAME)  # the first run in this directory
    call_command("migrate", interactive=False, verbosity=0)
