"""Names, keys and values of a run, checked before anything is written.

A name is what a person can read and type again; a value is JSON, and what its first execution
returns is what every replay returns (runs.md R10, R11, R15).
"""

import hashlib
import json
from typing import Any

from gnl_django.core import payloads
from gnl_django.core.registry import RESERVED_RUNS

VALUE_MAX_BYTES = 1_048_576
NAME_MAX = 200
RUN_ID_MAX = 255
MARK_MAX = 255
REASON_MAX = 500
ORG_MAX = 128


def check_text(noun: str, text: object, longest: int) -> str:
    """Return `text` when it has 1..`longest` printable characters and no space at its ends."""
    if not isinstance(text, str):
        raise TypeError(f"{noun} must be text, not {type(text).__name__}")
    if not 1 <= len(text) <= longest or not text.isprintable() or text.strip() != text:
        raise ValueError(
            f"{noun}: {text[:40]!r} is not 1 to {longest} printable characters "
            "without space at its ends"
        )
    return text


def check_run_id(run_id: object) -> str:
    """Return a run id that is well formed and belongs to no job, slot, workflow or event."""
    checked = check_text("run id", run_id, RUN_ID_MAX)
    if checked.startswith(RESERVED_RUNS):
        raise ValueError(
            f"run id: {checked[:40]!r} belongs to its own handler; "
            "use ctx.run_id (jobs) or meta.run_id (events) there"
        )
    return checked


def check_step_name(name: object) -> str:
    """Return a step's name; `#` is what we number repeated names with."""
    checked = check_text("step name", name, NAME_MAX)
    if "#" in checked:
        raise ValueError(f"step name: {checked[:40]!r} has a '#', which numbers repeated names")
    return checked


def encode(noun: str, value: Any) -> str:
    """Return a value's canonical JSON; InvalidPayload names the path of each fault."""
    return payloads.encode(noun, value, max_bytes=VALUE_MAX_BYTES)


def decode(text: str | None) -> Any:
    """Return the value of a stored text."""
    return None if text is None else json.loads(text)


def digest(text: str) -> str:
    """Return the hash by which two inputs are compared."""
    return hashlib.sha256(text.encode()).hexdigest()
