"""What the checkers of a history have in common: a violation, and the words for a job's row."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.history import History, Record, marks_of

FINAL = frozenset({"succeeded", "dead", "canceled"})
JOB = "gnl_django_job"
TINY = 0.0015  # seconds: SQLite's clock knows milliseconds


@dataclass(frozen=True)
class Violation:
    """One broken rule: what is wrong and with which jobs or runs."""

    rule: str
    text: str
    jobs: tuple[int, ...] = ()
    runs: tuple[str, ...] = ()


Checker = Callable[[History], list[Violation]]


def invoked_marks(h: History) -> Iterator[tuple[str, Any]]:
    """Yield the call's number and each item of every enqueue that was tried."""
    for record in h.client:
        if record["type"] == "invoke" and record["f"].startswith("enqueue"):
            for mark in marks_of(record["value"]):
                yield record["call"], mark


def payload_of(row: Record) -> Record:
    """Return a row's payload when it is an object, else an empty one."""
    payload = row["payload"]
    if isinstance(payload, str):
        payload = json.loads(payload)
    return payload if isinstance(payload, dict) else {}
