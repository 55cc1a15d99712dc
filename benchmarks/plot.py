"""The picture of a run: bars by peer and the rate under a held transaction, as one SVG.

Made of the run's document only, without a library. It has its own ground and two sets of colours,
so that it can be read on light and on dark pages. `benchmarks.publish` writes it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from xml.sax.saxutils import escape

WIDTH, MARGIN, GAP = 920, 24, 28
PANEL = (WIDTH - 2 * MARGIN - GAP) // 2
HEAD, FOOT_LINE = 78, 16
LABEL = 112  # room for a peer's name
VALUE = 96  # room for the figure behind a bar
BAR, BETWEEN, TITLE = 13, 9, 34
CURVE = 150
LONGEST_LINE = 128
OURS = "gnl"

STYLE = """
svg { --ground: #ffffff; --ink: #1f2328; --soft: #59636e; --line: #d1d9e0;
  --ours: #0f766e; --other: #8795a5; --pale: #c3cdd7; --ours-pale: #86c7c0; }
@media (prefers-color-scheme: dark) {
  svg { --ground: #0d1117; --ink: #e6edf3; --soft: #9198a1; --line: #3d444d;
    --ours: #2dd4bf; --other: #7d8b99; --pale: #4c5763; --ours-pale: #1b7f74; } }
.ground { fill: var(--ground); }
text { font: 12px system-ui, sans-serif; fill: var(--ink); }
.title { font-size: 17px; font-weight: 600; }
.panel { font-size: 13px; font-weight: 600; }
.soft { fill: var(--soft); font-size: 11px; }
.end { text-anchor: end; }
.ours { fill: var(--ours); } .other { fill: var(--other); }
.ours.second { fill: var(--ours-pale); } .other.second { fill: var(--pale); }
.axis { stroke: var(--line); fill: none; }
path.ours { stroke: var(--ours); fill: none; stroke-width: 2; }
path.other { stroke: var(--other); fill: none; stroke-width: 2; }
"""


@dataclass(frozen=True)
class Bars:
    """A panel: one or two values for each peer; `legend` says what they are."""

    title: str
    legend: str
    metrics: tuple[str, ...]
    digits: int = 0


PANELS = (
    Bars("Drain of a filled queue, one process", "jobs/s, more is better", ("drain1",)),
    Bars("The same, two processes", "jobs/s, more is better", ("drain2",)),
    Bars("Single enqueue, committed", "jobs/s, more is better", ("single",)),
    Bars(
        "Drain of a small table, and beside 300,000 rows",
        "jobs/s, more is better; second: with 200,000 finished, 100,000 later",
        ("rows_without", "rows_with"),
    ),
    Bars(
        "Pick-up by an idle worker",
        "ms from enqueue's return, less is better; second bar: p99",
        ("latency_after_p50", "latency_after_p99"),
        1,
    ),
    Bars("Bulk enqueue", "seconds for 30,000 jobs, less is better", ("bulk",), 2),
)
DUEL = (
    ("duel_sync10", "10, threads"),
    ("duel_async10", "10, async"),
    ("duel_sync100", "100, threads"),
    ("duel_async100", "100, async"),
    ("duel_lanes100", "100, lanes"),
)
Medians = Mapping[str, Mapping[str, float | None]]


@dataclass(frozen=True)
class Row:
    """A label and its bars."""

    label: str
    values: Sequence[float | None]
    ours: Sequence[bool]


def draw(document: Mapping[str, Any]) -> str:
    """Return the SVG text of a run."""
    boxes = list(_panels(document))
    foot = list(_versions(document))
    parts: list[str] = []
    heights = [HEAD, HEAD]
    for body, height in boxes:
        column = 0 if heights[0] <= heights[1] else 1
        x, y = MARGIN + column * (PANEL + GAP), heights[column]
        parts.append(f'<g transform="translate({x} {y})">{body}</g>')
        heights[column] += height + GAP
    bottom = max(heights)
    for at, line in enumerate(foot):
        parts.append(_text(MARGIN, bottom + at * FOOT_LINE, line, "soft"))
    height = bottom + len(foot) * FOOT_LINE + MARGIN // 2
    title = _text(MARGIN, 28, "gnl_django beside other queues", "title")
    under = _text(MARGIN, 46, _caption(document), "soft")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
        f' width="{WIDTH}" height="{height}" role="img" aria-label="Benchmarks of gnl_django">\n'
        f'<style>{STYLE}</style>\n<rect class="ground" width="{WIDTH}" height="{height}"/>\n'
        + "\n".join([title, under, *parts])
        + "\n</svg>\n"
    )


def _panels(document: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    medians: Medians = document["medians"]
    for panel in PANELS:
        rows = []
        for peer in document["peers"]:
            values = [medians.get(metric, {}).get(peer) for metric in panel.metrics]
            if any(value is not None for value in values):
                rows.append(Row(peer, values, [peer == OURS] * len(values)))
        if rows:
            yield _bars(panel.title, panel.legend, rows, panel.digits)
    duels = [
        Row(label, [medians[metric].get(OURS), medians[metric].get("pgqueuer")], [True, False])
        for metric, label in DUEL
        if metric in medians
    ]
    if duels:
        legend = "jobs/s, more is better; green: gnl, grey: pgqueuer at the same batch"
        yield _bars("Side by side with pgqueuer, jobs at a time", legend, duels, 0)
    if series := document["series"].get("held"):
        yield _curves(series)


def _bars(title: str, legend: str, rows: Sequence[Row], digits: int) -> tuple[str, int]:
    """Return a panel of horizontal bars, and its height."""
    longest = max((v for row in rows for v in row.values if v is not None), default=0) or 1
    space = PANEL - LABEL - VALUE
    parts = [_text(0, 0, title, "panel"), _text(0, 15, legend, "soft")]
    y = TITLE - 8
    for row in rows:
        parts.append(_text(LABEL - 8, y + BAR - 2, row.label, "end"))
        figures = []
        bars = [pair for pair in zip(row.values, row.ours, strict=True) if pair[0] is not None]
        thick = BAR / max(1, len(bars))
        for at, (value, ours) in enumerate(bars):
            assert value is not None  # noqa: S101 - for the type checker
            length = max(1.0, space * value / longest)
            second = " second" if at and ours == bars[0][1] else ""
            parts.append(
                f'<rect class="{"ours" if ours else "other"}{second}" x="{LABEL}"'
                f' y="{y + at * thick:.1f}" width="{length:.1f}" height="{thick:.1f}"/>'
            )
            figures.append((length, f"{value:,.{digits}f}"))
        end = LABEL + max(length for length, _ in figures) + 6
        parts.append(_text(end, y + BAR - 2, " / ".join(text for _, text in figures), "soft"))
        y += BAR + BETWEEN
    return "".join(parts), y


def _curves(series: Mapping[str, Sequence[Sequence[float]]]) -> tuple[str, int]:
    """Return the panel of the rate over time under a held transaction, and its height."""
    title = "Drain while a transaction is held open"
    top = max(value for points in series.values() for _, value in points)
    last = max(at for points in series.values() for at, _ in points)
    left, bottom = 44, TITLE + CURVE
    parts = [_text(0, 0, title, "panel"), _text(0, 15, "jobs/s of each burst", "soft")]
    parts.append(f'<path class="axis" d="M{left} {TITLE - 6}V{bottom}H{PANEL}"/>')
    parts.append(_text(left - 6, TITLE + 4, f"{top:,.0f}", "soft end"))
    parts.append(_text(left - 6, bottom, "0", "soft end"))
    parts.append(_text(PANEL, bottom + 15, f"{last:,.0f} s", "soft end"))
    for peer, points in series.items():
        spots = [
            f"{left + (PANEL - left - 70) * at / last:.1f} {bottom - CURVE * value / top:.1f}"
            for at, value in points
        ]
        parts.append(
            f'<path class="{"ours" if peer == OURS else "other"}" d="M{"L".join(spots)}"/>'
        )
        x, y = map(float, spots[-1].split())
        parts.append(_text(x + 6, y + 4, peer, "soft"))
    return "".join(parts), bottom + 18


def _caption(document: Mapping[str, Any]) -> str:
    facts = document["facts"]
    day = datetime.fromisoformat(document["written_at"])
    scale = document["sizes"]["scale"]
    return (
        f"{day.day} {day:%B %Y}, PostgreSQL {facts['server']['server_version']} durable,"
        f" {facts['cores']} cores; medians of one run"
        + ("" if scale == 1.0 else f" at SCALE={scale:g}, too small to judge by")
    )


def _versions(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the peers' versions in lines that fit."""
    line = ""
    for peer, found in document["facts"]["versions"].items():
        known = ", ".join(f"{name} {version}" for name, version in found.items())
        part = f"{peer}: {known}."
        if line and len(line) + len(part) > LONGEST_LINE:
            yield line
            line = ""
        line = f"{line} {part}".strip()
    if line:
        yield line


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" class="{kind}">{escape(text)}</text>'
