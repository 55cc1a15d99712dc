"""Write a run into the documentation: the section "One run" and the picture.

`python -m benchmarks.publish [results.json]` (make figures): the newest run without an argument.
Only what stands between the two marks of docs/benchmarks.md is replaced. A scaled run is refused:
its figures say nothing.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from benchmarks import plot, report
from benchmarks.peers import ROOT

PAGE = ROOT / "docs" / "benchmarks.md"
PICTURE = ROOT / "docs" / "img" / "benchmarks.svg"
BEGIN, END = "<!-- run: written by make figures -->", "<!-- end of the run -->"


class PublishError(Exception):
    """There is nothing that could be published; the text says why."""


def newest(directory: Path) -> Path:
    """Return the results file that was written last."""
    found = sorted(directory.glob("results-*.json"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise PublishError(f"no results in {directory}: run make bench first")
    return found[-1]


def section(document: report.Document) -> str:
    """Return the Markdown of a run."""
    return "\n".join(_lines(document))


def _lines(document: report.Document) -> Iterator[str]:
    facts = document["facts"]
    day = datetime.fromisoformat(document["written_at"])
    server = facts["server"]
    sections = " ".join(document["sections"])
    yield (
        f"{day.day} {day:%B %Y}, commit {facts['commit']}; {facts['cores']} cores shared by"
        f" servers, workers and the benchmark, {facts['memory_mib'] // 1024} GiB; PostgreSQL"
        f" {server['server_version']} on {server['filesystem']}, fsync {server['fsync']},"
        f" synchronous_commit {server['synchronous_commit']}. Sections: {sections}."
    )
    for line in (*report.summary(document), *document["notes"]):
        yield ""
        yield line
    yield ""
    yield f"![The figures below as a picture](img/{PICTURE.name})"
    for grid in report.grids(document):
        yield ""
        yield f"### {grid.title}"
        yield ""
        yield _row(grid.head)
        yield "|---|" + "---:|" * (len(grid.head) - 1)
        yield from map(_row, grid.rows)
    yield ""
    yield "### Versions"
    yield ""
    for peer, found in facts["versions"].items():
        yield f"- {peer}: " + ", ".join(f"{name} {version}" for name, version in found.items())
    if "redis" in facts:
        yield f"- Redis {facts['redis']}, nothing written to disk"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join("**MISSED**" if cell == "MISSED" else cell for cell in cells) + " |"


def rewrite(page: str, text: str) -> str:
    """Return the page with `text` between its marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise PublishError(f"the page has not both marks {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def load(given: Path | None, *, scaled: bool) -> tuple[Path, report.Document]:
    """Return the run to publish; a scaled one only for a look."""
    path = given or newest(ROOT / ".bench")
    document: report.Document = json.loads(path.read_text())
    if document["sizes"]["scale"] != 1.0 and not scaled:
        raise PublishError(f"{path} is of a scaled run; look at it with --to DIRECTORY")
    return path, document


def main(arguments: Sequence[str]) -> int:
    """Publish one run; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.publish", description=__doc__)
    parser.add_argument("results", nargs="?", type=Path, help="without it the newest run")
    parser.add_argument("--to", type=Path, help="a directory for page and picture, for a look")
    options = parser.parse_args(arguments)
    try:
        path, document = load(options.results, scaled=options.to is not None)
        page = rewrite(PAGE.read_text(), section(document))
    except PublishError as error:
        print(error, file=sys.stderr)
        return 1
    place, picture = PAGE, PICTURE
    if options.to:
        place, picture = options.to / PAGE.name, options.to / "img" / PICTURE.name
    picture.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(page)
    picture.write_text(plot.draw(document))
    print(f"{path} -> {place}, {picture}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
