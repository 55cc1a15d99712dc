"""The one setting GNL: documented defaults, and a wrong key or value never passes silently."""

import math
from dataclasses import FrozenInstanceError, asdict
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from gnl_django import conf

#: What the specification says, for those keys that exist.
DEFAULTS = {
    "DATABASE": "default",
    "PAYLOAD_MAX_BYTES": 1_048_576,
    "RESULT_MAX_BYTES": 65_536,
    "MAX_ATTEMPTS": 5,
    "TTL": 30,
    "POLL": 0.2,
    "MAX_POLL": 6.4,
    "CONCURRENCY": 10,
    "LINGER": 0.001,
    "PREPARE": True,
    "HEARTBEAT": 5,
    "RELEASE": "",
    "FAILPOINTS": False,
}


def test_the_defaults_are_those_of_the_specification(settings: Any) -> None:
    settings.GNL = {}
    found = asdict(conf.settings())
    assert {name: found[name] for name in DEFAULTS} == DEFAULTS


def test_a_project_without_the_setting_has_the_defaults(settings: Any) -> None:
    del settings.GNL
    assert conf.settings().MAX_ATTEMPTS == 5


def test_what_is_given_replaces_the_default_and_a_change_is_seen_at_once(settings: Any) -> None:
    settings.GNL = {"TTL": 60, "POLL": 1, "DATABASE": "jobs"}
    found = conf.settings()
    assert (found.TTL, found.POLL, found.DATABASE, found.MAX_ATTEMPTS) == (60, 1, "jobs", 5)
    settings.GNL = {"TTL": 61}
    assert (conf.settings().TTL, conf.settings().DATABASE) == (61, "default")


def test_a_change_of_another_setting_is_no_reason_to_read_again(settings: Any) -> None:
    settings.GNL = {}
    before = conf.settings()
    settings.SECRET_KEY = "another"
    assert conf.settings() is before


def test_the_settings_cannot_be_changed_in_place() -> None:
    with pytest.raises(FrozenInstanceError):
        conf.settings().TTL = 5  # type: ignore[misc]


def test_an_unknown_key_is_refused_with_the_keys_that_exist(settings: Any) -> None:
    settings.GNL = {"MAX_ATEMPTS": 3}
    with pytest.raises(ImproperlyConfigured, match=r"MAX_ATEMPTS.*MAX_ATTEMPTS"):
        conf.settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DATABASE", None),
        ("DATABASE", 5),
        ("MAX_ATTEMPTS", 0),
        ("MAX_ATTEMPTS", -1),
        ("MAX_ATTEMPTS", True),
        ("MAX_ATTEMPTS", 2.5),
        ("MAX_ATTEMPTS", "5"),
        ("MAX_ATTEMPTS", None),
        ("PAYLOAD_MAX_BYTES", 0),
        ("PAYLOAD_MAX_BYTES", 1e6),
        ("TTL", "30"),
        ("TTL", True),
        ("TTL", -1),
        ("POLL", math.nan),
        ("POLL", None),
        ("HEARTBEAT", 0.9),
        ("HEARTBEAT", 31),
        ("HEARTBEAT", True),
        ("RELEASE", None),
        ("PREPARE", 1),
        ("FAILPOINTS", "yes"),
        ("REDACT", 5),
        ("REDACT_KEYS", None),
    ],
)
def test_a_value_of_the_wrong_form_is_refused_by_its_name(
    settings: Any, name: str, value: Any
) -> None:
    settings.GNL = {name: value}
    with pytest.raises(ImproperlyConfigured, match=name):
        conf.settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TTL", 1),
        ("TTL", 1.5),
        ("POLL", 1),
        ("HEARTBEAT", 1),
        ("HEARTBEAT", 2.5),
        ("HEARTBEAT", 30),
        ("RELEASE", "2026.11"),
        ("REDACT", "a.b"),
        ("REDACT", None),
        ("PREPARE", False),
    ],
)
def test_a_value_of_the_right_form_passes(settings: Any, name: str, value: Any) -> None:
    settings.GNL = {name: value}
    assert getattr(conf.settings(), name) == value
