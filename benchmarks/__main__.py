"""`python -m benchmarks`: measure, print, write JSON. Exit 1 when a job did not run exactly once.

A target that is short is printed as short and does not change the exit code: it depends on the
machine. Wrong work does not.
"""

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks import machine, report
from benchmarks.bench import Bench
from benchmarks.peers import NAMES, ROOT, choose
from benchmarks.plan import FULL, OPTIONAL, QUICK, SECTIONS, BenchError
from benchmarks.sections import SECTIONS as FUNCTIONS
from benchmarks.vendors import vendors
from testproject.private_server import ServerError


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options; unknown names of sections and peers end the program with a message."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    every = (*SECTIONS, *OPTIONAL)
    parser.add_argument(
        "--only",
        type=_names(every),
        default=list(SECTIONS),
        metavar="NAMES",
        help=f"sections, separated by commas: {', '.join(every)}"
        f" (without the option: {', '.join(SECTIONS)}); 'all' for all",
    )
    parser.add_argument(
        "--peers",
        type=_names(NAMES),
        default=list(NAMES),
        metavar="NAMES",
        help=f"peers, separated by commas: {', '.join(NAMES)}",
    )
    parser.add_argument("--quick", action="store_true", help="a smoke run of less than a minute")
    parser.add_argument(
        "--directory", type=Path, default=ROOT / ".bench", help="where results are written"
    )
    return parser.parse_args(arguments)


def _names(known: Sequence[str]) -> "type[list[str]]":
    def names(text: str) -> list[str]:
        if text == "all":
            return list(known)
        wanted = [name.strip() for name in text.split(",") if name.strip()]
        if unknown := [name for name in wanted if name not in known]:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}")
        return [name for name in known if name in wanted]

    return names  # type: ignore[return-value]


def run(options: argparse.Namespace, console: Console) -> int:
    """Measure everything that was asked for and return the exit code."""
    sizes = QUICK if options.quick else FULL
    warnings: list[str] = []

    def warn(text: str) -> None:
        warnings.append(text)
        console.print(f"[bold red]{text}[/]")

    peers = choose(options.peers, options.directory, warn)
    facts = machine.facts()
    with Bench(peers, sizes, options.directory, console.print) as bench:
        bench.results.notes += warnings
        facts["server"] = bench.server_facts()
        functions = {**FUNCTIONS, "vendors": vendors}
        for name in options.only:
            start = time.monotonic()
            console.print(f"{name} ..", end=" ")
            functions[name](bench)
            console.print(f"{time.monotonic() - start:.0f} s")
        report.show(console, bench)
        console.print(f"written: {report.save(bench, facts)}")
        return 1 if bench.results.wrong else 0


def main(arguments: Sequence[str]) -> int:
    """Run and turn what went wrong into one line and exit code 1."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return run(parse(arguments), console)
    except (BenchError, ServerError) as error:
        console.print(f"\nThe benchmark stopped: {error}", style="bold red", markup=False)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
