"""What a run found: samples by metric and peer, every drain, notes; medians on demand."""

import statistics
from collections import Counter
from dataclasses import dataclass, field

from benchmarks.drain import Drain


@dataclass
class Results:
    """Filled by the sections, read by the targets and the report."""

    samples: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    drains: list[Drain] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    #: Points (seconds, value) of what is drawn over time, by name and peer.
    series: dict[str, dict[str, list[tuple[float, float]]]] = field(default_factory=dict)
    idle_statements: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, metric: str, peer: str, value: float) -> None:
        """Keep one sample."""
        self.samples.setdefault(metric, {}).setdefault(peer, []).append(value)

    def median(self, metric: str, peer: str) -> float | None:
        """Return the median of the samples, or None when there are none."""
        values = self.samples.get(metric, {}).get(peer)
        return statistics.median(values) if values else None

    def ratio(self, metric: str, peer: str, other: str) -> float | None:
        """Return the median of `peer` divided by that of `other` in this run."""
        mine, others = self.median(metric, peer), self.median(metric, other)
        return mine / others if mine is not None and others else None

    @property
    def wrong(self) -> list[Drain]:
        """Return the drains in which a job did not run exactly once or was left."""
        return [drain for drain in self.drains if not drain.correct]
