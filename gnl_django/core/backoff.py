"""Delays that grow: between attempts of a job, between looks of an idle loop, after errors.

Pure arithmetic in seconds; called by the queue's outcomes and by `core.loop`.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta

Delay = (
    float
    | timedelta
    | Sequence[float | timedelta]
    | Callable[[int, BaseException], float | timedelta]
)

LONGEST_RETRY = 300.0
LONGEST = 100 * 366 * 86_400.0  # beyond it the databases' calendars end


def default_retry(attempt: int) -> float:
    """Return 1, 2, 4 .. 256, 300, 300 .. seconds for attempts 1, 2, 3 .. (queue.md R35)."""
    return min(2.0 ** min(attempt - 1, 30), LONGEST_RETRY)


def seconds(value: object) -> float:
    """Return `value` (seconds or a timedelta) as a number from 0 to 100 years' seconds.

    Raises ValueError or TypeError for anything else; bool is not a number here.
    """
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{value!r} is neither seconds nor a timedelta")
    if not 0 <= value <= LONGEST:  # false for NaN
        raise ValueError(f"{value!r} is not a duration of 0 seconds to 100 years")
    return float(value)


def retry_delay(delay: Delay | None, attempt: int, error: BaseException) -> float:
    """Return the seconds to wait after failed attempt number `attempt`.

    `delay` is what @job was given; of a sequence the last element repeats. Raises what the user's
    callable raises, ValueError or TypeError for a result that is no duration.
    """
    if delay is None:
        return default_retry(attempt)
    if callable(delay):
        return seconds(delay(attempt, error))
    if isinstance(delay, Sequence):
        return seconds(delay[min(attempt, len(delay)) - 1])
    return seconds(delay)


class Growing:
    """A wait that doubles from `first` to `longest` seconds and falls back when reset."""

    def __init__(self, first: float, longest: float) -> None:
        self._first = first
        self._longest = longest
        self._next = first

    def take(self) -> float:
        """Return the wait that is due now, in seconds; the next one is twice as long."""
        wait, self._next = self._next, min(self._next * 2, self._longest)
        return wait

    def reset(self) -> None:
        """Begin again with the shortest wait."""
        self._next = self._first
