"""Who did what by a command: one line each to the logger `gnl_django.audit` (security.md 2.3).

Called by the commands that act. A line never holds a payload.
"""

import getpass
import logging
import os
from collections.abc import Sequence

logger = logging.getLogger("gnl_django.audit")

IDS_SHOWN = 20


def note(act: str, *, what: str = "", ids: Sequence[int] = (), outcome: str = "") -> None:
    """Log an act: its verb, what it was about, the jobs meant (the first twenty), how it ended."""
    parts = [part for part in (what, outcome) if part]
    if ids:
        more = f" and {len(ids) - IDS_SHOWN} more" if len(ids) > IDS_SHOWN else ""
        parts.append(f"ids {', '.join(map(str, ids[:IDS_SHOWN]))}{more}")
    logger.info("%s by %r at the command line: %s", act, user(), "; ".join(parts) or "-")


def user() -> str:
    """Return the name of the account that runs this process, its number where it has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's user without an entry
        return f"uid {os.getuid()}"
