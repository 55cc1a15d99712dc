"""A project's day under each configuration of Django, with real processes (docs/operating.md)."""

from typing import Any

import pytest

from tests.anywhere.conftest import Travel
from tests.support import vendor

pytestmark = pytest.mark.django_db(transaction=True)

Configuration = dict[str, Any]

EVERYWHERE: dict[str, Configuration] = {
    "local times, no age limit of connections": {
        "settings": {"USE_TZ": False, "TIME_ZONE": "America/St_Johns"},
        "default": {"CONN_MAX_AGE": None},
    },
    "connections of a minute with health checks": {
        "settings": {"TIME_ZONE": "Asia/Kathmandu"},
        "default": {"CONN_MAX_AGE": 60, "CONN_HEALTH_CHECKS": True},
    },
    "a connection for each request, checked": {
        "default": {"CONN_MAX_AGE": 0, "CONN_HEALTH_CHECKS": True, "ATOMIC_REQUESTS": True},
    },
}
POSTGRESQL: dict[str, Configuration] = {
    "a pool": {
        "default": {
            "CONN_HEALTH_CHECKS": True,
            "OPTIONS": {"pool": {"min_size": 1, "max_size": 4, "timeout": 20}},
        },
    },
    "parameters bound by the server, plans after two uses": {
        "default": {"OPTIONS": {"server_side_binding": True, "prepare_threshold": 2}},
    },
    "repeatable read in the options": {"default": {"OPTIONS": {"isolation_level": 3}}},
    "serializable in the options, local times": {
        "settings": {"USE_TZ": False, "TIME_ZONE": "Asia/Kathmandu"},
        "default": {"OPTIONS": {"isolation_level": 4}, "CONN_MAX_AGE": 60},
    },
    "serializable as the session's default": {
        "default": {"OPTIONS": {"options": "-c default_transaction_isolation=serializable"}},
    },
}
MYSQL: dict[str, Configuration] = {
    level: {"default": {"OPTIONS": {"isolation_level": level, "charset": "utf8mb4"}}}
    for level in ("repeatable read", "serializable")
}
#: Much like another that is always travelled.
LONG = {
    "parameters bound by the server, plans after two uses",
    "repeatable read in the options",
    "serializable as the session's default",
    "repeatable read",
}
SQLITE: dict[str, Configuration] = {
    "transactions that begin deferred, no WAL": {"default": {"OPTIONS": {}}},
}


def skipped(names: dict[str, Configuration], mark: pytest.MarkDecorator) -> list[Any]:
    return [
        pytest.param(name, marks=[mark, pytest.mark.slow] if name in LONG else mark, id=name)
        for name in names
    ]


@pytest.mark.row("queue", "C55")
@pytest.mark.parametrize(
    "name",
    [
        *EVERYWHERE,
        *skipped(POSTGRESQL, pytest.mark.postgres("an option of PostgreSQL")),
        *skipped(MYSQL, pytest.mark.mysql("an option of MySQL")),
        *skipped(SQLITE, pytest.mark.sqlite("an option of SQLite")),
    ],
)
def test_the_queue_works_with(name: str, travel: Travel) -> None:
    own = {"postgresql": POSTGRESQL, "mysql": MYSQL, "sqlite": SQLITE}[vendor()]
    travel((EVERYWHERE | own)[name])
