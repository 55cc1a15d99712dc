"""How much is measured: the sections by name, and the sizes of a full and of a quick run."""

from dataclasses import dataclass

SECTIONS = ("single", "bulk", "drain", "pickup", "idle", "rows", "burst")
OPTIONAL = ("lanes", "rss", "vendors")
POLL = 0.2  # seconds; every peer's worker polls at this pace in the pick-up section


class BenchError(Exception):
    """The run cannot go on; the text says why."""


@dataclass(frozen=True)
class Sizes:
    """Counts and seconds of one run. `slow_` is what a peer of a few hundred jobs/s is given."""

    quick: bool = False
    repeats: int = 3
    single: int = 2_000
    slow_single: int = 500
    bulk: int = 30_000
    drain: int = 20_000
    slow_drain: int = 2_000
    # the golden ratio of a poll on top of 1.5 polls spreads the phases evenly over the poll
    pickups: int = 40
    pickup_gap: float = POLL * 2.118
    # passes of an idle worker stand at 0, 0.2, 0.6, 1.4, 3, 6.2, 12.6 s: then every 6.4 s
    idle_settle: float = 13.5
    idle_seconds: float = 20.0
    rows_repeats: int = 5
    rows_drain: int = 5_000
    rows_slow_drain: int = 1_000
    rows_finished: int = 200_000
    rows_scheduled: int = 100_000
    lanes: int = 1_000
    flat: int = 200_000
    vendor_drain: int = 10_000
    burst: int = 20_000


FULL = Sizes()
QUICK = Sizes(
    quick=True,
    repeats=1,
    single=200,
    slow_single=50,
    bulk=3_000,
    drain=2_000,
    slow_drain=200,
    pickups=8,
    idle_settle=3.2,
    idle_seconds=3.0,
    rows_repeats=1,
    rows_drain=1_000,
    rows_slow_drain=100,
    rows_finished=5_000,
    rows_scheduled=2_500,
    lanes=100,
    flat=5_000,
    vendor_drain=1_000,
    burst=2_000,
)
