"""`python -m benchmarks`: measure, print, write JSON. Exit 1 when a job did not run exactly once.

A target that is missed is printed as MISSED and does not change the exit code: it depends on the
machine. Wrong work does, and so does a section that could not be measured.
"""

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from benchmarks import machine, peers, plan, report, venv
from benchmarks.bench import Bench
from benchmarks.peers import JOURNALS, ROOT
from benchmarks.plan import BenchError
from benchmarks.sections import FUNCTIONS
from testproject.private_server import ServerError

WIDTH = 160


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options; unknown names of sections and peers end the program with a message."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="sections:\n" + "\n".join(f"  {n:8} {t}" for n, t in plan.SECTIONS.items()),
    )
    parser.add_argument(
        "--only",
        type=_names(tuple(plan.SECTIONS)),
        metavar="NAMES",
        help=f"sections by name, or 'all' (without the option: {' '.join(plan.DEFAULT)})",
    )
    parser.add_argument(
        "--peers",
        type=_names(peers.NAMES),
        metavar="NAMES",
        help=f"of {' '.join(peers.NAMES)}, or 'all' (without: {' '.join(peers.DEFAULT)})",
    )
    parser.add_argument("--all", action="store_true", help="every section, every peer")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="counts and seconds times this (0.1: a short try)"
    )
    parser.add_argument(
        "--directory", type=Path, default=ROOT / ".bench", help="where results are written"
    )
    options = parser.parse_args(arguments)
    every = options.all
    options.only = options.only or list(plan.SECTIONS if every else plan.DEFAULT)
    options.peers = options.peers or list(peers.NAMES if every else peers.DEFAULT)
    return options


def _names(known: Sequence[str]) -> Callable[[str], list[str]]:
    """Return the reader of a list of names, separated by commas or blanks."""

    def names(text: str) -> list[str]:
        wanted = text.replace(",", " ").split()
        if wanted == ["all"]:
            return list(known)
        if unknown := [name for name in wanted if name not in known]:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}")
        return [name for name in known if name in wanted]

    return names


def run(options: argparse.Namespace, console: Console) -> int:
    """Measure everything that was asked for and return the exit code."""
    sizes = plan.FULL.scaled(options.scale)
    warnings: list[str] = []
    failed = False

    def warn(text: str) -> None:
        warnings.append(text)
        console.print(text, style="bold red", markup=False)

    wanted = [name for name in options.peers if "steps" in options.only or name not in JOURNALS]
    chosen = peers.choose(wanted, options.directory, warn)
    facts = {**machine.facts(), "commit": commit(), "versions": versions(chosen)}
    with Bench(chosen, sizes, options.directory, warn) as bench:
        facts["server"] = bench.server_facts()
        for name in options.only:
            start = time.monotonic()
            console.print(f"{name} ..", end=" ")
            try:
                FUNCTIONS[name](bench)
            except BenchError as error:
                failed = True
                warn(f"NOT MEASURED: {name}: {error}")
            console.print(f"{time.monotonic() - start:.0f} s")
        if any(peer.broker for peer in chosen):
            facts["redis"] = bench.redis.version()
        bench.results.notes[:0] = warnings
        document = report.document(bench, facts, options.only)
        report.show(console, document)
        console.print(f"written: {report.save(options.directory, document)}")
        return 1 if failed or bench.results.wrong else 0


def versions(chosen: Sequence[peers.Peer]) -> dict[str, dict[str, str]]:
    """Return the versions that each peer runs on."""
    return {peer.name: venv.versions(peer.python, peer.packages) for peer in chosen}


def commit() -> str:
    """Return the commit of the checkout, with a plus sign when it has been changed since."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--exclude=*"],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return described.stdout.strip()


def main(arguments: Sequence[str]) -> int:
    """Run and turn what went wrong into one line and exit code 1."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return run(parse(arguments), console)
    except (BenchError, ServerError) as error:
        console.print(f"\nThe benchmark stopped: {error}", style="bold red", markup=False)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
