"""The demo's options, read from the environment."""

from pathlib import Path

import pytest

from testproject.demo.options import BASE_DIR, BadOption, Options


def test_without_any_option_the_demo_serves_from_sqlite() -> None:
    options = Options.read({})
    assert options == Options()
    assert (options.once, options.server, options.database_url, options.limit) == (
        *(False, None),
        *(None, None),
    )
    assert options.directory == BASE_DIR / ".demo"


def test_every_option_is_read(tmp_path: Path) -> None:
    environ = {"ONCE": "1", "DB": "postgres", "LIMIT": "20", "CONCURRENCY": "2", "PORT": "8123"}
    options = Options.read({**environ, "DEMO_DIR": str(tmp_path)})
    assert options == Options(
        once=True, server="postgres", limit=20, concurrency=2, port=8123, directory=tmp_path
    )


def test_an_empty_value_is_no_value() -> None:
    names = ("ONCE", "DB", "DATABASE_URL", "LIMIT", "CONCURRENCY", "PORT", "DEMO_DIR")
    assert Options.read(dict.fromkeys(names, "")) == Options()


def test_sqlite_may_be_named() -> None:
    assert Options.read({"DB": "sqlite"}) == Options()


def test_once_can_be_switched_off() -> None:
    assert not Options.read({"ONCE": "0"}).once


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"DB": "oracle"}, "DB=oracle"),
        ({"DB": "postgres", "DATABASE_URL": "sqlite:///x"}, "DATABASE_URL"),
        ({"LIMIT": "0"}, "LIMIT=0"),
        ({"LIMIT": "many"}, "LIMIT=many"),
        ({"LIMIT": "-1"}, "LIMIT=-1"),
        ({"CONCURRENCY": "1.5"}, "CONCURRENCY=1.5"),
        ({"PORT": "65536"}, "PORT=65536"),
    ],
)
def test_a_value_that_means_nothing_is_refused_by_name(environ: dict[str, str], named: str) -> None:
    with pytest.raises(BadOption, match=named):
        Options.read(environ)
