"""What a checker finds, and how exact clocks are; shared by the checkers of every floor."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.history import History

TINY = 0.0015  # seconds: SQLite's clock knows milliseconds


@dataclass(frozen=True)
class Violation:
    """One broken rule: what is wrong and with which jobs or runs."""

    rule: str
    text: str
    jobs: tuple[int, ...] = ()
    runs: tuple[str, ...] = ()


Checker = Callable[[History], list[Violation]]
