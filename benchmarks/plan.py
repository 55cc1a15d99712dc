"""What is measured and how much of it: the sections by name, and the sizes of a run.

`make bench` measures DEFAULT, `make bench ALL=1` every section and every peer. A scale below 1
shrinks counts and seconds alike: such a run shows that everything works and is not to judge by.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

SECTIONS: Mapping[str, str] = {
    "single": "one enqueue after another",
    "bulk": "one call that enqueues many",
    "drain": "a filled queue, one worker process and two",
    "duel": "the same drain side by side with pgqueuer, batch for batch",
    "latency": "from enqueue to the handler's first line",
    "idle": "what a worker with nothing to do asks of the database",
    "rows": "the drain in a table full of finished and of later jobs",
    "burst": "many jobs at once for a worker that is idle on a tiny table",
    "flood": "a quiet organization behind another one's backlog",
    "lanes": "the drain over very many organizations",
    "claims": "a claim's time with a million finished rows",
    "big": "claims, empty promote and empty reap with a million rows of each sort",
    "held": "the drain while a transaction is held open",
    "crowd": "many processes enqueue while two workers drain",
    "prune": "the deletion of a million old jobs",
    "vendors": "the drain on MariaDB and SQLite",
    "rss": "the memory of one worker over very many jobs",
    "steps": "jobs of five durable steps",
}
DEFAULT = (
    *("single", "bulk", "drain", "duel", "latency", "idle", "rows", "burst", "flood", "lanes"),
    *("claims", "steps"),
)
POLL = 0.2  # seconds; a worker that can only poll does so at this pace in the latency section
SMALLEST_SCALE = 0.001


class BenchError(Exception):
    """The run cannot go on; the text says why."""


@dataclass(frozen=True)
class Sizes:
    """Counts and seconds of one run; `slow_` is what a peer of a few hundred jobs/s is given."""

    scale: float = 1.0
    repeats: int = 3
    two_process_repeats: int = 2
    single: int = 2_000
    slow_single: int = 500
    bulk: int = 30_000
    orgs: int = 1_000
    drain: int = 20_000
    slow_drain: int = 2_000
    duel: int = 20_000
    # of a peer that is told of a job; the gap is no multiple of anything that ticks
    notified: int = 200
    notified_gap: float = 0.107
    # of a peer that polls: 1.5 polls and the golden ratio spread the phases evenly over the poll
    polled: int = 40
    polled_gap: float = POLL * 2.118
    # passes of an idle worker stand at 0, 0.2, 0.6, 1.4, 3, 6.2, 12.6 s: then every 6.4 s
    idle_settle: float = 13.5
    idle_seconds: float = 20.0
    rows_repeats: int = 3
    rows_drain: int = 5_000
    rows_slow_drain: int = 1_000
    rows_finished: int = 200_000
    rows_scheduled: int = 100_000
    burst: int = 20_000
    flood: int = 100_000
    quiet: int = 30
    quiet_gap: float = 0.263
    lanes: int = 10_000
    lanes_drain: int = 20_000
    million: int = 1_000_000
    claims: int = 200
    held_seconds: float = 180.0
    held_burst: int = 20_000
    enqueuers: int = 8
    crowd: int = 2_000
    vendor_drain: int = 10_000
    flat: int = 200_000
    steps: int = 2_000
    # drained through a proxy that counts: what a job asks of the database
    steps_counted: int = 300

    def scaled(self, scale: float) -> "Sizes":
        """Return the sizes times `scale`, but nothing so small that it says nothing at all."""
        if scale == 1.0:
            return self
        if not SMALLEST_SCALE <= scale <= 1.0:
            raise BenchError(f"the scale lies between {SMALLEST_SCALE} and 1, not at {scale}")
        changes: dict[str, float] = {"scale": scale}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _KEPT:
                continue
            if field.name in _REPEATS:
                changes[field.name] = 1 if scale < 0.5 else value
            elif isinstance(value, int):
                changes[field.name] = max(min(value, 3), round(value * scale))
            else:
                changes[field.name] = max(2.0, value * scale)
        return replace(self, **changes)  # type: ignore[arg-type]


_KEPT = {"scale", "notified_gap", "polled_gap", "quiet_gap", "idle_settle", "enqueuers"}
_REPEATS = {"repeats", "two_process_repeats", "rows_repeats"}
FULL = Sizes()
