"""The speeds to reach, as ratios inside one run; the report marks each as met or MISSED.

A bound is compared with medians of the same run only: figures of two runs are never mixed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.peers import DJTASKS, GNL, JOURNALS, ON_POSTGRES, PGQUEUER, RAW
from benchmarks.results import Results

Measure = Callable[[Results], float | None]
Sense = Literal["at least", "at most", "below"]


@dataclass(frozen=True)
class Target:
    """One figure and the bound it has to keep; `section` measures it."""

    section: str
    title: str
    measure: Measure
    sense: Sense
    bound: float
    unit: str = "x"


@dataclass(frozen=True)
class Verdict:
    """A target with what this run gave; `met` is None when it was not measured."""

    target: Target
    value: float | None

    @property
    def met(self) -> bool | None:
        """Return whether the bound was kept."""
        if self.value is None:
            return None
        if self.target.sense == "at least":
            return self.value >= self.target.bound
        if self.target.sense == "below":
            return self.value < self.target.bound
        return self.value <= self.target.bound

    def plain(self) -> dict[str, object]:
        """Return the fields for JSON."""
        target = self.target
        return {
            "section": target.section,
            "title": target.title,
            "sense": target.sense,
            "bound": target.bound,
            "unit": target.unit,
            "value": self.value,
            "met": self.met,
        }


def _of(metric: str) -> Measure:
    return lambda results: results.median(metric, GNL)


def _to(metric: str, other: str) -> Measure:
    return lambda results: results.ratio(metric, GNL, other)


def _over(metric: str, other: str) -> Measure:
    """Return our median of one metric divided by that of another."""

    def measure(results: Results) -> float | None:
        mine, base = results.median(metric, GNL), results.median(other, GNL)
        return mine / base if mine is not None and base else None

    return measure


def _to_fastest(metric: str, peers: Sequence[str]) -> Measure:
    """Return our median of a rate divided by that of the fastest of `peers`."""

    def measure(results: Results) -> float | None:
        ratios = [results.ratio(metric, GNL, peer) for peer in peers]
        found = [ratio for ratio in ratios if ratio is not None]
        return min(found) if found else None

    return measure


def _worst(metrics: Sequence[str]) -> Measure:
    """Return the largest of our medians of `metrics`."""

    def measure(results: Results) -> float | None:
        found = [results.median(metric, GNL) for metric in metrics]
        values = [value for value in found if value is not None]
        return max(values) if values else None

    return measure


def _big(act: str) -> Measure:
    return _worst([f"big_{act}_{sort}" for sort in ("one_lane", "many_lanes", "scheduled", "dead")])


TARGETS = (
    Target(
        "duel", "drain at 10, threads, to pgqueuer", _to("duel_sync10", PGQUEUER), "at least", 1.25
    ),
    Target(
        "duel", "drain at 100, threads, to pgqueuer", _to("duel_sync100", PGQUEUER), "at least", 1.2
    ),
    Target(
        "duel", "drain at 10, async, to pgqueuer", _to("duel_async10", PGQUEUER), "at least", 1.4
    ),
    Target(
        "duel", "drain at 100, async, to pgqueuer", _to("duel_async100", PGQUEUER), "at least", 1.3
    ),
    Target(
        "duel",
        "drain of 1,000 lanes at 100, to pgqueuer",
        _to("duel_lanes100", PGQUEUER),
        "at least",
        0.95,
    ),
    Target("drain", "drain, two processes to one", _over("drain2", "drain1"), "at least", 1.5),
    Target("drain", f"drain, one process, to {DJTASKS}", _to("drain1", DJTASKS), "at least", 10),
    Target("drain", "drain, one process, to raw", _to("drain1", RAW), "at least", 0.45),
    Target("drain", "worker memory, peak", _of("rss_peak"), "at most", 80, "MiB"),
    Target("latency", "pick-up p50, told by NOTIFY", _of("latency_after_p50"), "at most", 3, "ms"),
    Target("latency", "pick-up p99, told by NOTIFY", _of("latency_after_p99"), "at most", 10, "ms"),
    Target("idle", "idle statements after back-off", _of("idle"), "at most", 1, "/s"),
    Target("single", "single enqueue, to a prepared INSERT", _to("single", RAW), "at least", 0.6),
    Target(
        "single",
        "single enqueue, to the fastest peer on PostgreSQL",
        _to_fastest("single", ON_POSTGRES),
        "at least",
        1,
    ),
    Target(
        "bulk",
        "enqueue_many with keys and orgs, time to a bare INSERT",
        _over("bulk_keyed", "bulk_bare"),
        "at most",
        1.1,
    ),
    Target("bulk", "C25: 30,000 jobs in one call", _of("bulk_keyed"), "at most", 1.5, "s"),
    Target(
        "rows",
        "drain beside finished and later rows, to without",
        _of("rows_ratio"),
        "at least",
        0.95,
    ),
    Target(
        "flood",
        "quiet org behind a backlog, wait to an empty queue's",
        _over("flood_behind_p50", "flood_alone_p50"),
        "at most",
        3,
    ),
    Target(
        "flood",
        "quiet org behind a backlog, claims until it starts",
        _of("flood_claims"),
        "at most",
        2,
        "claims",
    ),
    Target(
        "claims",
        "claim, 1M finished rows and 10,000 lanes",
        _of("claim_finished_p50"),
        "at most",
        2,
        "ms",
    ),
    Target("big", "C53: claim, 1M rows of each sort", _big("claim"), "below", 5, "ms"),
    Target("big", "C53: empty promote", _big("promote"), "below", 1, "ms"),
    Target("big", "C53: empty reap", _big("reap"), "below", 1, "ms"),
    Target(
        "held",
        "drain at the end of a 3-minute transaction, to before",
        _over("held_end", "held_before"),
        "at least",
        0.6,
    ),
    Target("vendors", "drain on MariaDB, to PostgreSQL", _of("mariadb_ratio"), "at least", 0.3),
    Target("vendors", "drain on SQLite, to PostgreSQL", _of("sqlite_ratio"), "at least", 1.5),
    Target(
        "burst",
        "idle worker, burst of 20,000: full speed after",
        _of("burst_full"),
        "at most",
        2,
        "s",
    ),
    Target(
        "crowd",
        "8 writers, 2 workers: runs with a job lost or doubled",
        _worst(["crowd_wrong"]),
        "at most",
        0,
        "runs",
    ),
    Target(
        "prune",
        "C120: rows wrongly kept or deleted of 1M",
        _of("prune_wrong"),
        "at most",
        0,
        "rows",
    ),
    Target(
        "rss",
        "worker memory, growth over 3/4 of 200,000 jobs",
        _of("flat_growth"),
        "at most",
        2,
        "MiB",
    ),
    Target(
        "steps",
        "durable steps, to the faster of dbos and absurd",
        _to_fastest("steps", JOURNALS),
        "at least",
        1.3,
    ),
    Target("steps", "durable steps, writes of a step", _of("steps_writes"), "at most", 1, "/step"),
    Target(
        "steps", "durable steps, reads of a fresh run", _of("steps_reads"), "at most", 1, "/run"
    ),
)


def judge(results: Results) -> list[Verdict]:
    """Return the verdict on every target."""
    return [Verdict(target, target.measure(results)) for target in TARGETS]
