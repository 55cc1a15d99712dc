"""The tables on the terminal and the JSON file of a run."""

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.bench import Bench
from benchmarks.peers import DJTASKS, GNL, RAW
from benchmarks.results import Results
from benchmarks.targets import Verdict, judge

# metric, title, digits
ROWS = (
    ("single", "single enqueue, jobs/s", 0),
    ("bulk", "bulk enqueue, s", 2),
    ("bulk_keyed", "bulk enqueue with keys and orgs, s", 2),
    ("drain1", "drain, 1 process, jobs/s", 0),
    ("drain2", "drain, 2 processes, jobs/s", 0),
    ("worker_cpu", "  worker's CPU, us/job", 0),
    ("server_cpu", "  server's CPU, us/job", 0),
    ("burst", "burst on an idle worker, jobs/s", 0),
    ("rows_without", "drain, small table, jobs/s", 0),
    ("rows_with", "drain beside other rows, jobs/s", 0),
    ("lanes", "drain over many orgs, jobs/s", 0),
    ("pickup_p50", "pick-up, same poll, p50 ms", 1),
    ("pickup_p99", "pick-up, same poll, p99 ms", 1),
    ("pickup_inside_p50", "pick-up, same process, p50 ms", 2),
    ("pickup_inside_p99", "pick-up, same process, p99 ms", 2),
    ("idle", "idle, statements/s", 2),
    ("idle_cpu", "idle, CPU %", 2),
    ("rss_peak", "worker memory, peak MiB", 0),
    ("rss_after", "worker memory, after MiB", 0),
    ("flat_peak", "worker memory, many jobs, peak MiB", 0),
    ("flat_growth", "worker memory, growth MiB", 1),
    ("mariadb", "drain on MariaDB, jobs/s", 0),
    ("sqlite", "drain on SQLite, jobs/s", 0),
)


def show(console: Console, bench: Bench) -> None:
    """Print what was measured, then what was asked."""
    console.print(_measured(bench))
    console.print(_asked(judge(bench.results), quick=bench.sizes.quick))
    drains = bench.results.drains
    if drains:
        others = max(drain.foreign_cores for drain in drains)
        right = len(drains) - len(bench.results.wrong)
        console.print(
            f"{right} of {len(drains)} drains ran every job exactly once and left none;"
            f" other programs used at most {others:.2f} cores meanwhile."
        )
    for note in bench.results.notes:
        console.print(note)


def _measured(bench: Bench) -> Table:
    results = bench.results
    table = Table(title="Medians of one run on PostgreSQL, durable")
    table.add_column("")
    for peer in bench.peers:
        table.add_column(peer.name, justify="right")
    table.add_column(f"{GNL} / {RAW}", justify="right")
    table.add_column(f"{GNL} / {DJTASKS}", justify="right")
    for metric, title, digits in ROWS:
        if metric not in results.samples:
            continue
        values = [_number(results.median(metric, peer.name), digits) for peer in bench.peers]
        ratios = [_number(results.ratio(metric, GNL, other), 2) for other in (RAW, DJTASKS)]
        table.add_row(title, *values, *ratios)
    return table


def _asked(verdicts: list[Verdict], *, quick: bool) -> Table:
    table = Table(title="Speed to reach" + (" (quick run: too small to judge by)" if quick else ""))
    for column in ("", "bound", "measured", ""):
        table.add_column(column)
    words = {True: "[green]reached[/]", False: "[red]SHORT[/]", None: "not measured"}
    for verdict in verdicts:
        target = verdict.target
        bound = f"{target.sense} {target.bound:g} {target.unit}"
        table.add_row(target.title, bound, _number(verdict.value, 2), words[verdict.reached])
    return table


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def save(bench: Bench, facts: dict[str, object]) -> Path:
    """Write the run to the next free `results-<n>.json` and return its path."""
    number = 1
    while (path := bench.directory / f"results-{number}.json").exists():
        number += 1
    path.write_text(json.dumps(_document(bench, facts), indent=1) + "\n")
    return path


def _document(bench: Bench, facts: dict[str, object]) -> dict[str, object]:
    results = bench.results
    return {
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "facts": facts,
        "sizes": asdict(bench.sizes),
        "medians": _medians(results),
        "ratios": {
            other: {
                metric: results.ratio(metric, GNL, other)
                for metric in results.samples
                if results.ratio(metric, GNL, other) is not None
            }
            for other in (RAW, DJTASKS)
        },
        "targets": [
            {
                "title": verdict.target.title,
                "sense": verdict.target.sense,
                "bound": verdict.target.bound,
                "unit": verdict.target.unit,
                "value": verdict.value,
                "reached": verdict.reached,
            }
            for verdict in judge(results)
        ],
        "samples": results.samples,
        "idle_statements": {
            peer: dict(statements.most_common())
            for peer, statements in results.idle_statements.items()
        },
        "drains": [drain.plain() for drain in results.drains],
        "notes": results.notes,
    }


def _medians(results: Results) -> dict[str, dict[str, float | None]]:
    return {
        metric: {peer: results.median(metric, peer) for peer in peers}
        for metric, peers in results.samples.items()
    }
