"""System checks: what they find, and that a wrong setting does not end them (queue.md R52)."""

from typing import Any

import pytest
from django.db import connection

from gnl_django import checks as ours


def found(
    databases: list[str] | None = None, *, include_deployment_checks: bool = False
) -> list[str]:
    """Return the ids of our messages; the checks of others are not asked."""
    messages = [*ours.check_settings(), *ours.check_versions(databases=databases)]
    if include_deployment_checks:
        messages += ours.check_failpoints()
    return [str(message.id) for message in messages]


@pytest.mark.django_db
def test_this_run_is_in_order(settings: Any) -> None:
    settings.GNL = {}
    assert found(databases=["default"]) == []
    assert found(databases=["default"], include_deployment_checks=True) == []


@pytest.mark.django_db
@pytest.mark.parametrize("wrong", [{"TLL": 1}, {"TTL": "long"}, []])
def test_a_wrong_setting_is_one_error_and_ends_no_check(settings: Any, wrong: Any) -> None:
    settings.GNL = wrong
    assert found(databases=["default"], include_deployment_checks=True) == ["gnl_django.E001"]


def test_leases_shorter_than_three_looks_are_an_error(settings: Any) -> None:
    settings.GNL = {"TTL": 1, "POLL": 0.5}
    assert found() == ["gnl_django.E002"]


def test_an_alias_that_does_not_exist_is_an_error(settings: Any) -> None:
    settings.GNL = {"DATABASE": "elsewhere"}
    assert found() == ["gnl_django.E003"]


@pytest.mark.parametrize(("mode", "ids"), [("IMMEDIATE", []), (None, ["gnl_django.W001"])])
def test_sqlite_that_begins_transactions_deferred_is_warned_of(
    settings: Any, monkeypatch: pytest.MonkeyPatch, mode: str | None, ids: list[str]
) -> None:
    entry = {"ENGINE": "django.db.backends.sqlite3", "OPTIONS": {"transaction_mode": mode}}
    assert warned(settings, monkeypatch, entry) == ids


@pytest.mark.parametrize(("level", "ids"), [("read committed", []), (None, ["gnl_django.W002"])])
def test_mysql_that_is_not_read_committed_is_warned_of(
    settings: Any, monkeypatch: pytest.MonkeyPatch, level: str | None, ids: list[str]
) -> None:
    entry = {"ENGINE": "django.db.backends.mysql", "OPTIONS": {"isolation_level": level}}
    assert warned(settings, monkeypatch, entry) == ids


def warned(settings: Any, monkeypatch: pytest.MonkeyPatch, entry: dict[str, Any]) -> list[str]:
    """Return what is said of an alias with this entry."""
    monkeypatch.setitem(settings.DATABASES, "other", entry)
    settings.GNL = {"DATABASE": "other"}
    return [str(message.id) for message in ours.check_settings()]


@pytest.mark.django_db
def test_a_database_that_is_too_old_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ours.OLDEST, connection.vendor, ("something newer", lambda _: False))
    assert found(databases=["default"]) == ["gnl_django.E004"]
    assert ours.check_versions(databases=[]) == []


def test_armed_fail_points_are_warned_of_before_a_deployment(settings: Any) -> None:
    settings.GNL = {"FAILPOINTS": True}
    assert found(include_deployment_checks=True) == ["gnl_django.W003"]
