"""What the caller of the demo may choose, read from the environment once, at the start."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parents[2]
SERVERS = ("postgres", "mariadb")


class BadOption(Exception):
    """An option has a value that means nothing; the text says which and what would do."""


@dataclass(frozen=True)
class Options:
    """The demo's options; docs/demo.md has one line for each."""

    once: bool = False
    server: str | None = None
    database_url: str | None = None
    limit: int | None = None
    concurrency: int = 4
    port: int = 8000
    directory: Path = BASE_DIR / ".demo"

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> "Options":
        """Return the options in `environ`; an empty value is as good as none.

        Raises BadOption before anything is started.
        """
        server = environ.get("DB") or None
        database_url = environ.get("DATABASE_URL") or None
        if server == "sqlite":
            server = None
        if server is not None and server not in SERVERS:
            raise BadOption(f"DB={server}: sqlite, {' or '.join(SERVERS)} expected")
        if server and database_url:
            raise BadOption("DB and DATABASE_URL are both given: one of them chooses the database")
        return cls(
            once=environ.get("ONCE", "") not in ("", "0"),
            server=server,
            database_url=database_url,
            limit=_count(environ, "LIMIT", None),
            concurrency=_count(environ, "CONCURRENCY", None) or cls.concurrency,
            port=_count(environ, "PORT", 65535) or cls.port,
            directory=Path(environ.get("DEMO_DIR") or BASE_DIR / ".demo").resolve(),
        )


def _count(environ: Mapping[str, str], name: str, highest: int | None) -> int | None:
    text = environ.get(name, "")
    if not text:
        return None
    if not text.isdecimal() or int(text) < 1 or (highest is not None and int(text) > highest):
        wanted = "a number from 1" + (f" to {highest}" if highest else "")
        raise BadOption(f"{name}={text}: {wanted} expected")
    return int(text)
