"""A child under another configuration: a real worker beside a project's day with the queue."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.procs import ROOT, Proc, Spawner

SETTINGS = {"DJANGO_SETTINGS_MODULE": "tests.anywhere.settings"}
#: What a healthy worker never logs; `anywhere.write` and `anywhere.fail` fail on purpose.
TROUBLE = ("ERROR", "CRITICAL", "Traceback", "locked", "Warning:")
EXPECTED = ("(anywhere.fail) failed", "(anywhere.write) failed")

PROGRAM = "import django; django.setup(); from tests.anywhere.journey import main; main({!r}, {!r})"

Travel = Callable[..., Proc]


def configured(changes: Mapping[str, Any], **env: str) -> dict[str, str]:
    """Return the environment of a child under `changes` (tests.anywhere.settings)."""
    return {**SETTINGS, "GNL_TEST_ANYWHERE": json.dumps(changes), "PYTHONWARNINGS": "error", **env}


def troubles(output: str) -> list[str]:
    """Return the lines of a worker's output that should not be there."""
    return [
        line
        for line in output.splitlines()
        if any(word in line for word in (*TROUBLE, "WARNING"))
        and not any(words in line for words in EXPECTED)
    ]


@pytest.fixture
def travel(spawn: Spawner) -> Travel:
    """Run a worker and the journey under a configuration; the worker's process is returned."""

    def start(
        changes: Mapping[str, Any],
        *options: str,
        alias: str | None = None,
        stored_in: str = "default",
    ) -> Proc:
        env = configured(changes)
        database = [] if alias is None else ["--database", alias]
        poll = ["--poll", "0.02", "--max-poll", "0.1", "--queues", "default,low", "--ttl", "6"]
        command = [str(ROOT / "manage.py"), "gnl_worker", *poll, *database, *options]
        worker = spawn([], python=["-X", "dev", *command], env=env)
        program = PROGRAM.format(alias, stored_in)
        journey = spawn([], python=["-X", "dev", "-c", program], env=env)
        code = journey.wait(100)
        assert code == 0, f"{journey.output()}\nThe worker's output:\n{worker.output()[-4000:]}"
        worker.term()
        assert worker.wait() == 0, worker.output()
        assert not troubles(worker.output())
        return worker

    return start
