"""The measurements, one function each; docs/benchmarks.md tells what each one means.

`python -m benchmarks` calls them by name. They only take samples: what is met is decided in
benchmarks.targets.
"""

from collections.abc import Callable, Mapping

from benchmarks.bench import Bench
from benchmarks.sections.crowded import big, claims, crowd, held, prune, rows
from benchmarks.sections.drains import drain, duel, lanes, rss
from benchmarks.sections.enqueue import bulk, single
from benchmarks.sections.prompt import burst, flood, idle, latency
from benchmarks.sections.steps import steps
from benchmarks.sections.vendors import vendors

FUNCTIONS: Mapping[str, Callable[[Bench], None]] = {
    "single": single,
    "bulk": bulk,
    "drain": drain,
    "duel": duel,
    "latency": latency,
    "idle": idle,
    "rows": rows,
    "burst": burst,
    "flood": flood,
    "lanes": lanes,
    "claims": claims,
    "big": big,
    "held": held,
    "crowd": crowd,
    "prune": prune,
    "vendors": vendors,
    "rss": rss,
    "steps": steps,
}
