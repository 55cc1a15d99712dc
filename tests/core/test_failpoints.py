"""Fail points do nothing unless both switches are on, and then what they are told."""

from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import InterfaceError, OperationalError

from gnl_django.core import failpoints
from gnl_django.core.failpoints import Arm


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    failpoints._armed.clear()
    failpoints._hooks.clear()


@pytest.fixture
def arm(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Arm points as the environment of a command would: `arm("retry.begin=kill@2")`."""

    def arm_points(text: str, *, setting: bool = True) -> None:
        settings.GNL = {"FAILPOINTS": setting}
        monkeypatch.setenv("GNL_FAILPOINTS", text)
        failpoints.arm_from_environment()

    return arm_points


def test_nothing_is_armed_by_itself() -> None:
    assert not failpoints.armed()
    for name in failpoints.POINTS:
        failpoints.hit(name)


def test_the_environment_alone_arms_nothing(arm: Any) -> None:
    arm("claim.committed=raise:builtins.RuntimeError", setting=False)
    assert not failpoints.armed()
    failpoints.hit("claim.committed")


def test_the_setting_alone_arms_nothing(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.GNL = {"FAILPOINTS": True}
    monkeypatch.delenv("GNL_FAILPOINTS", raising=False)
    failpoints.arm_from_environment()
    assert not failpoints.armed()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("claim.committed=kill", Arm("claim.committed", "kill")),
        (" retry.begin=stop@3 ", Arm("retry.begin", "stop", nth=3)),
        ("retry.begin=log%25", Arm("retry.begin", "log", prob=25)),
        ("bulk.chunk=sleep:0.5@2%50", Arm("bulk.chunk", "sleep", "0.5", 2, 50)),
        (
            "renew.begin=raise:django.db.OperationalError",
            Arm("renew.begin", "raise", "django.db.OperationalError"),
        ),
        ("reap.updated=wait:/a-b/c_d.fifo", Arm("reap.updated", "wait", "/a-b/c_d.fifo")),
    ],
)
def test_a_point_is_written_as_name_action_nth_and_probability(text: str, wanted: Arm) -> None:
    assert failpoints.parse(text) == wanted


@pytest.mark.parametrize(
    "text", ["claim.committed", "nowhere.begin=kill", "claim.committed=explode", "=kill", "a=b=c"]
)
def test_a_point_that_is_misspelt_is_refused(arm: Any, text: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=r"GNL_FAILPOINTS: .* is not a fail point"):
        arm(text)


def test_several_points_are_armed_at_once(arm: Any) -> None:
    arm("claim.begin=log;;retry.begin=raise:builtins.OSError")
    failpoints.hit("claim.begin")
    with pytest.raises(OSError, match="fail point"):
        failpoints.hit("retry.begin")


@pytest.mark.parametrize(
    ("path", "raised"),
    [
        ("builtins.RuntimeError", RuntimeError),
        ("django.db.OperationalError", OperationalError),
        ("django.db.InterfaceError", InterfaceError),
    ],
)
@pytest.mark.parametrize("action", ["raise", "exec_then_raise"])
def test_a_point_raises_what_it_is_told(
    arm: Any, action: str, path: str, raised: type[Exception]
) -> None:
    arm(f"claim.committed={action}:{path}")
    with pytest.raises(raised, match="fail point"):
        failpoints.hit("claim.committed")


def test_a_point_raises_nothing_outside_its_list(arm: Any) -> None:
    arm("claim.committed=raise:builtins.SystemExit")
    with pytest.raises(ImproperlyConfigured, match=r"not 'builtins\.SystemExit'"):
        failpoints.hit("claim.committed")


def test_a_point_acts_at_its_nth_hit_only(arm: Any) -> None:
    arm("claim.committed=raise:builtins.RuntimeError@3")
    failpoints.hit("claim.committed")
    failpoints.hit("claim.committed")
    failpoints.hit("claim.begin")
    with pytest.raises(RuntimeError):
        failpoints.hit("claim.committed")
    failpoints.hit("claim.committed")


def test_a_point_with_a_probability_acts_now_and_then(arm: Any) -> None:
    arm("claim.committed=raise:builtins.RuntimeError%30")
    raised = 0
    for _ in range(200):
        try:
            failpoints.hit("claim.committed")
        except RuntimeError:
            raised += 1
    assert 20 < raised < 120


def test_a_point_waits_for_the_other_end_of_its_fifo(arm: Any, tmp_path: Path) -> None:
    import os

    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    arm(f"claim.committed=wait:{fifo}")
    thread = Thread(target=failpoints.hit, args=("claim.committed",))
    thread.start()
    with fifo.open("wb"):
        assert thread.is_alive()
    thread.join(30)
    assert not thread.is_alive()


def test_a_point_may_wait_for_a_while(arm: Any) -> None:
    arm("claim.committed=sleep:0.001")
    failpoints.hit("claim.committed")


def test_every_action_is_written_into_the_log(arm: Any, caplog: pytest.LogCaptureFixture) -> None:
    arm("claim.committed=log")
    failpoints.hit("claim.committed")
    assert [record.message.strip() for record in caplog.records] == [
        "Fail point claim.committed: log"
    ]


def test_a_test_hooks_a_point_and_takes_the_hook_away(settings: Any) -> None:
    settings.GNL = {"FAILPOINTS": True}
    seen: list[int] = []
    failpoints.hook("claim.begin", lambda: seen.append(1))
    assert failpoints.armed()
    failpoints.hit("claim.begin")
    failpoints.hook("claim.begin", None)
    failpoints.hook("claim.begin", None)
    failpoints.hit("claim.begin")
    assert seen == [1]
    assert not failpoints.armed()


def test_a_hook_needs_the_setting_and_a_point_that_exists(settings: Any) -> None:
    settings.GNL = {"FAILPOINTS": False}
    with pytest.raises(ImproperlyConfigured, match="need GNL"):
        failpoints.hook("claim.begin", lambda: None)
    with pytest.raises(ValueError, match="'nowhere' is not a fail point"):
        failpoints.hook("nowhere", lambda: None)


#: reliability.md 2.4, the rows of the floors that exist.
SPECIFIED = {
    "enqueue": "begin inserted committed",
    "enqueue_many": "chunk",
    "promote": "updated committed",
    "claim": "begin selected updated committed",
    "handler": "before returned",
    "renew": "begin updated committed",
    **dict.fromkeys(("complete", "retry", "bury", "cancel", "release"), "begin updated committed"),
    "reap": "selected updated committed",
    "prune": "selected deleted",
    "bulk": "chunk",
    "step": "begin claimed effect_done journaled committed",
    "run": "final",
}


def test_the_points_are_those_of_the_specification() -> None:
    wanted = {f"{area}.{at}" for area, moments in SPECIFIED.items() for at in moments.split()}
    assert wanted == failpoints.POINTS


def test_each_point_is_passed_somewhere_in_the_code() -> None:
    package = Path(failpoints.__file__).parents[1]
    source = "\n".join(path.read_text() for path in package.rglob("*.py"))
    for name in failpoints.POINTS:
        area, _, moment = name.partition(".")
        passed = (
            f'failpoints.hit("{name}")' in source
            or f'points.hit("{moment}")' in source
            or f'="{name}"' in source  # handed to the journal's write
            or (f'_marked("{area}"' in source and moment in {"updated", "committed"})
        )
        assert passed, name
