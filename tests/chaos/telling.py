"""What processes tell the effect log of their own accord: stale claims, final states, their kinds.

A process takes part once `begin()` has been called in it; the environment variable GNL_TEST_HISTORY
names the directory of the run.
"""

import logging
import os
from pathlib import Path
from typing import Any

from gnl_django.queue.options import kinds
from gnl_django.signals import job_finished
from tests.history import EffectLog

_log: EffectLog | None = None


def effects() -> EffectLog | None:
    """Return the effect log of this process, None when it takes part in no run."""
    return _log


def begin(directory: str | Path | None = None, proc: str = "") -> None:
    """Open the log of the run in `directory` (else GNL_TEST_HISTORY) and listen for finals."""
    global _log
    place = directory or os.environ.get("GNL_TEST_HISTORY")
    if place:
        _log = EffectLog(Path(place) / "effects", proc)
        job_finished.connect(_final, dispatch_uid="tests.chaos")
        if _handler not in _logger.handlers:
            _logger.addHandler(_handler)
        _logger.setLevel(logging.INFO)


def end() -> None:
    """Take no further part."""
    global _log
    job_finished.disconnect(dispatch_uid="tests.chaos")
    _logger.removeHandler(_handler)
    _logger.setLevel(logging.NOTSET)
    if _log is not None:
        _log.close()
        _log = None


def worker_starts() -> None:
    """Say what this process can run."""
    if _log is not None:
        _log.write(e="worker", kinds=sorted(kinds))


def _final(*, job_id: int, state: str, **_: Any) -> None:
    if _log is not None:
        _log.write(e="final", job=job_id, state=state)


class StaleHandler(logging.Handler):
    """Writes the worker's words about stale claims to the effect log."""

    def emit(self, record: logging.LogRecord) -> None:
        """Take the job's id from the line about it."""
        if _log is not None and "StaleClaim" in record.msg and record.args:
            _log.write(e="stale", job=record.args[0])  # type: ignore[index]


_logger = logging.getLogger("gnl_django")
_handler = StaleHandler()
