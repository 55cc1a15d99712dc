"""A project's day under each configuration of Django, with real processes (docs/operating.md)."""

from typing import Any

import pytest

from tests.anywhere.conftest import Travel

pytestmark = pytest.mark.django_db(transaction=True)

CONFIGURATIONS: dict[str, dict[str, Any]] = {
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


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_queue_works_with(name: str, travel: Travel) -> None:
    travel(CONFIGURATIONS[name])
