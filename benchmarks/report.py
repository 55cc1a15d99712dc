"""The document of a run: what the JSON file holds, and the tables made of it.

The terminal, docs/benchmarks.md and the picture all read this document, so they never differ.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.bench import Bench
from benchmarks.peers import GNL
from benchmarks.results import Results
from benchmarks.targets import judge

Document = dict[str, Any]

# metric, title, digits: what several peers are measured for
SHARED = (
    ("single", "single enqueue, jobs/s", 0),
    ("bulk", "bulk enqueue, s", 2),
    ("drain1", "drain, 1 process, jobs/s", 0),
    ("drain2", "drain, 2 processes, jobs/s", 0),
    ("worker_cpu", "CPU of the worker, us/job", 0),
    ("server_cpu", "CPU of the server, us/job", 0),
    ("rss_peak", "worker's memory, peak MiB", 0),
    ("duel_sync10", "drain at 10, ours in threads, jobs/s", 0),
    ("duel_async10", "drain at 10, ours async, jobs/s", 0),
    ("duel_sync100", "drain at 100, ours in threads, jobs/s", 0),
    ("duel_async100", "drain at 100, ours async, jobs/s", 0),
    ("duel_lanes100", "drain at 100, ours over 1,000 lanes, jobs/s", 0),
    ("latency_after_p50", "pick-up after enqueue returned, p50 ms", 1),
    ("latency_after_p99", "pick-up after enqueue returned, p99 ms", 1),
    ("latency_from_call_p50", "pick-up from the call, p50 ms", 1),
    ("latency_from_call_p99", "pick-up from the call, p99 ms", 1),
    ("idle", "idle, statements/s", 2),
    ("idle_redis", "idle, Redis commands/s", 2),
    ("idle_cpu", "idle, CPU %", 2),
    ("rows_without", "drain of a small table, jobs/s", 0),
    ("rows_with", "drain beside other rows, jobs/s", 0),
    ("flood_behind_p50", "behind another org's backlog, p50 ms", 1),
    ("held_before", "bursts before the open transaction, jobs/s", 0),
    ("held_end", "bursts at its end, jobs/s", 0),
    ("held_jobs", "jobs done while it was open", 0),
    ("held_after", "the burst after it, jobs/s", 0),
    ("crowd_enqueue", "8 writers, 2 workers: enqueued, jobs/s", 0),
    ("crowd_drain", "8 writers, 2 workers: done, jobs/s", 0),
    ("crowd_wait_p50", "8 writers, 2 workers: pick-up p50 ms", 1),
    ("crowd_wait_p99", "8 writers, 2 workers: pick-up p99 ms", 1),
    ("steps", "jobs of 5 durable steps, steps/s", 0),
    ("steps_jobs", "jobs of 5 durable steps, jobs/s", 0),
    ("steps_worker_cpu", "their CPU of the worker, us/step", 0),
    ("steps_server_cpu", "their CPU of the server, us/step", 0),
    ("steps_statements", "their statements of all sorts, a job", 2),
)
# what only we are measured for
OWN = (
    ("bulk_keyed", "bulk enqueue with keys and orgs, s", 2),
    ("bulk_bare", "the same jobs by a bare INSERT .. SELECT unnest, s", 2),
    ("bulk_statement", "that statement alone, its arrays ready, s", 2),
    ("latency_inside_after_p50", "pick-up in the same process, p50 ms", 2),
    ("latency_inside_after_p99", "pick-up in the same process, p99 ms", 2),
    ("burst_usual", "drain of a filled queue, beside the burst, jobs/s", 0),
    ("burst", "burst on an idle worker, jobs/s", 0),
    ("burst_full", "burst on an idle worker, full speed after s", 2),
    ("flood_alone_p50", "quiet org on an empty queue, p50 ms", 1),
    ("flood_alone_p99", "quiet org on an empty queue, p99 ms", 1),
    ("flood_behind_p99", "quiet org behind a backlog, p99 ms", 1),
    ("flood_claims", "quiet org behind a backlog, claims until it starts, most", 0),
    ("lanes_one", "drain of one lane, jobs/s", 0),
    ("lanes_many", "drain over 10,000 lanes, jobs/s", 0),
    ("claim_finished_p50", "claim of 10, 1M finished rows, 10,000 lanes, p50 ms", 2),
    ("claim_finished_p99", "claim of 10, 1M finished rows, 10,000 lanes, p99 ms", 2),
    ("big_claim_one_lane", "claim of 10, one lane of 1M, p50 ms", 2),
    ("big_claim_many_lanes", "claim of 10, 100,000 lanes of 10, p50 ms", 2),
    ("big_claim_scheduled", "claim of 10, 1M scheduled, p50 ms", 2),
    ("big_claim_dead", "claim of 10, 1M dead, p50 ms", 2),
    ("big_promote_scheduled", "empty promote, 1M scheduled, p50 ms", 2),
    ("big_reap_one_lane", "empty reap, one lane of 1M, p50 ms", 2),
    ("postgresql", "drain of the same number on PostgreSQL, jobs/s", 0),
    ("mariadb", "drain on MariaDB, jobs/s", 0),
    ("sqlite", "drain on SQLite, jobs/s", 0),
    ("prune_seconds", "gnl_prune of 1M rows, s", 0),
    ("prune_rate", "gnl_prune, rows/s", 0),
    ("steps_writes", "statements that write, a durable step", 2),
    ("steps_reads", "reads of the journal, a fresh run", 2),
    ("flat_peak", "worker's memory over many jobs, peak MiB", 0),
    ("flat_growth", "its growth over the last 3/4 of them, MiB", 1),
)
WORDS = {True: "met", False: "MISSED", None: "not measured"}


@dataclass(frozen=True)
class Grid:
    """A table as text: a heading, column titles, rows."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def number(value: float | None, digits: int) -> str:
    """Return a value as it is printed; `-` for what was not measured."""
    return "-" if value is None else f"{value:,.{digits}f}"


def grids(document: Document) -> Iterator[Grid]:
    """Yield the tables of a run: the targets, the peers side by side, ourselves."""
    yield Grid("Speed to reach", ("", "target", "measured", ""), list(_targets(document)))
    medians: Mapping[str, Mapping[str, float | None]] = document["medians"]
    peers: list[str] = document["peers"]
    yield Grid(
        "Side by side, medians",
        ("", *peers),
        [
            (title, *(number(medians[metric].get(peer), digits) for peer in peers))
            for metric, title, digits in SHARED
            if metric in medians
        ],
    )
    own = [
        (title, number(medians[metric].get(GNL), digits))
        for metric, title, digits in OWN
        if metric in medians
    ]
    if own:
        yield Grid("gnl_django alone, medians", ("", GNL), own)


def _targets(document: Document) -> Iterator[tuple[str, ...]]:
    for target in document["targets"]:
        if target["met"] is None and target["section"] not in document["sections"]:
            continue
        bound = f"{target['sense']} {target['bound']:g} {target['unit']}"
        digits = 0 if target["unit"] in {"claims", "runs", "rows", "MiB"} else 2
        measured = number(target["value"], digits)
        yield target["title"], bound, measured, WORDS[target["met"]]


def summary(document: Document) -> list[str]:
    """Return what else has to be said of a run."""
    lines = []
    if drains := document["drains"]:
        right = sum(drain["correct"] for drain in drains)
        others = max(drain["foreign_cores"] for drain in drains)
        lines.append(
            f"{right} of {len(drains)} drains ran every job exactly once and left none; other"
            f" programs used at most {others:.2f} cores meanwhile."
        )
    met = [target["met"] for target in document["targets"]]
    lines.append(
        f"Targets: {met.count(True)} met, {met.count(False)} MISSED,"
        f" {met.count(None)} not measured in this run."
    )
    if document["sizes"]["scale"] != 1.0:
        lines.append(f"SCALE={document['sizes']['scale']:g}: too small to judge by.")
    return lines


def show(console: Console, document: Document) -> None:
    """Print the tables, the summary and the notes."""
    colours = {"met": "[green]met[/]", "MISSED": "[red]MISSED[/]"}
    for grid in grids(document):
        table = Table(title=grid.title)
        for at, column in enumerate(grid.head):
            table.add_column(column, justify="right" if at else "left", no_wrap=not at)
        for row in grid.rows:
            table.add_row(*(colours.get(cell, cell) for cell in row))
        console.print(table)
    for line in (*summary(document), *document["notes"]):
        console.print(line, markup=False)


def save(directory: Path, document: Document) -> Path:
    """Write the run to the next free `results-<n>.json` and return its path."""
    at = 1
    while (path := directory / f"results-{at}.json").exists():
        at += 1
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def document(bench: Bench, facts: dict[str, object], sections: Sequence[str]) -> Document:
    """Return all that is known of a run."""
    results = bench.results
    return {
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "sections": list(sections),
        "peers": [peer.name for peer in (*bench.peers, *bench.journals)],
        "facts": facts,
        "sizes": asdict(bench.sizes),
        "medians": _medians(results),
        "targets": [verdict.plain() for verdict in judge(results)],
        "samples": results.samples,
        "series": results.series,
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
