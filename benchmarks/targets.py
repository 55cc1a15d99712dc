"""The speeds to reach, as ratios inside one run; the report marks each as reached or short.

A bound is compared with medians of the same run only: figures of two runs are never mixed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from benchmarks.peers import DJTASKS, GNL, RAW
from benchmarks.plan import POLL
from benchmarks.results import Results

# An ideal poller has a median of exactly half a poll before it does any work; the rest is for
# the enqueue in front and the claim behind.
PICKUP_SHARE = 1.05


@dataclass(frozen=True)
class Target:
    """One figure and the bound it has to keep."""

    title: str
    measure: Callable[[Results], float | None]
    sense: Literal["at least", "at most"]
    bound: float
    unit: str = "x"


@dataclass(frozen=True)
class Verdict:
    """A target with what this run gave; `reached` is None when it was not measured."""

    target: Target
    value: float | None

    @property
    def reached(self) -> bool | None:
        if self.value is None:
            return None
        if self.target.sense == "at least":
            return self.value >= self.target.bound
        return self.value <= self.target.bound


def _of(metric: str) -> Callable[[Results], float | None]:
    return lambda results: results.median(metric, GNL)


def _to(metric: str, other: str) -> Callable[[Results], float | None]:
    return lambda results: results.ratio(metric, GNL, other)


HALF_POLL_MS = POLL * 1000 / 2

TARGETS = (
    Target(f"drain, one process, to {DJTASKS}", _to("drain1", DJTASKS), "at least", 10),
    Target("drain, one process, to raw", _to("drain1", RAW), "at least", 0.45),
    Target("drain with 300,000 other rows, to without", _of("rows_ratio"), "at least", 0.9),
    Target("bulk enqueue, time to raw", _to("bulk", RAW), "at most", 5),
    Target("single enqueue, to raw", _to("single", RAW), "at least", 0.6),
    Target("pick-up p50, same process", _of("pickup_inside_p50"), "at most", HALF_POLL_MS, "ms"),
    Target(
        "pick-up p50, same poll",
        _of("pickup_p50"),
        "at most",
        HALF_POLL_MS * PICKUP_SHARE,
        "ms",
    ),
    Target("idle statements after back-off", _of("idle"), "at most", 3, "/s"),
    Target("worker memory, peak", _of("rss_peak"), "at most", 80, "MiB"),
    Target("worker memory, growth over 3/4 of rss", _of("flat_growth"), "at most", 2, "MiB"),
)


def judge(results: Results) -> list[Verdict]:
    """Return the verdict on every target."""
    return [Verdict(target, target.measure(results)) for target in TARGETS]
