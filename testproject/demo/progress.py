"""Shows how far the queue is: live in a terminal, as plain lines elsewhere.

Every look at the database is one statement over the run's own range of primary keys.
"""

from collections import deque
from dataclasses import dataclass, field
from time import monotonic

from django.db.models import Count
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gnl_django.models import Job
from testproject.demo.work import Run
from testproject.library.background import KIND

STATES = ("scheduled", "ready", "running", "succeeded", "dead", "canceled")
FINAL = frozenset({"succeeded", "dead", "canceled"})
WINDOW = 5.0  # seconds over which the rate is taken
LINE_EVERY = 2.0  # seconds between two plain lines


@dataclass(frozen=True)
class Counts:
    """The run's jobs by state at one moment."""

    states: dict[str, int]

    @property
    def finished(self) -> int:
        return sum(number for state, number in self.states.items() if state in FINAL)

    @property
    def waiting(self) -> int:
        """Jobs that a worker still has, or will have, to do something about."""
        return sum(self.states.values()) - self.finished


def count(run: Run) -> Counts:
    """Read the number of the run's jobs in each state."""
    rows = (
        Job.objects.filter(pk__range=(run.first, run.last), kind=KIND)
        .order_by()
        .values_list("state")
        .annotate(Count("pk"))
    )
    return Counts({str(state): number for state, number in rows})


@dataclass
class Rate:
    """Jobs finished per second over the last few seconds."""

    marks: deque[tuple[float, int]] = field(default_factory=deque)

    def add(self, now: float, finished: int) -> float:
        """Note that `finished` jobs were done at `now` (seconds, monotonic); return the rate."""
        self.marks.append((now, finished))
        while len(self.marks) > 2 and now - self.marks[0][0] > WINDOW:
            self.marks.popleft()
        since, before = self.marks[0]
        return (finished - before) / (now - since) if now > since else 0.0


class Display:
    """The progress on `console`; use as a context, call `show` as often as there is news."""

    def __init__(self, console: Console, run: Run, footer: str = "") -> None:
        self.console = console
        self.run = run
        self.footer = footer
        self.rate = Rate()
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._line_due = 0.0
        self._printed: Counts | None = None

    def show(self, counts: Counts) -> None:
        """Show `counts`."""
        now = monotonic()
        rate = self.rate.add(now, counts.finished)
        if self._live is not None:
            self._live.update(self._panel(counts, rate), refresh=True)
        elif counts != self._printed and (now >= self._line_due or not counts.waiting):
            self._line_due = now + LINE_EVERY
            self._printed = counts
            self.console.print(self._line(counts, rate), highlight=False, soft_wrap=True)

    def _line(self, counts: Counts, rate: float) -> str:
        states = " ".join(f"{state}={counts.states.get(state, 0)}" for state in STATES)
        return f"{counts.finished}/{self.run.jobs} finished, {rate:.0f}/s: {states}"

    def _panel(self, counts: Counts, rate: float) -> RenderableType:
        head = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=self.run.jobs or 1, completed=counts.finished, width=40)
        head.add_row(bar, f"{counts.finished}/{self.run.jobs}", f"[bold]{rate:.0f}[/] jobs/s")
        table = Table(box=None, padding=(0, 1))
        for state in STATES:
            style = "red" if state == "dead" else None
            table.add_column(state, justify="right", style=style)
        table.add_row(*(str(counts.states.get(state, 0)) for state in STATES))
        return Group(head, table, *([Text(self.footer)] if self.footer else []))

    def __enter__(self) -> "Display":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *unused: object) -> None:
        if self._live is not None:
            self._live.stop()
