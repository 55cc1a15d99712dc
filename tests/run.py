"""Run the suite on every database: one pytest run each (`make test`, `make coverage`).

`python -m tests.run [--jobs N] [--coverage] [--marks EXPRESSION] [pytest's arguments]`. With one
job the runs follow each other and print as they go; with more they run side by side, and each
prints its closing line, or everything if it failed. The last lines name the tests that failed: a CI
may show no more. Exit code 1 when any run failed, or when CI is set and a database was left out.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from testproject.servers import mariadb_missing
from tests import failed as failures
from tests.database import VENDORS

ROOT = Path(__file__).resolve().parent.parent
#: pytest's: no test was collected, fine for a marker that no test of one database has.
NOTHING_COLLECTED = 5


def main(argv: list[str] | None = None) -> int:
    """Run, report, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="tests.run", description="The suite on every database.", allow_abbrev=False
    )
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side (default 1)")
    parser.add_argument("--coverage", action="store_true", help="measure coverage")
    parser.add_argument("--marks", default="not chaos and not slow", help="pytest's -m")
    options, arguments = parser.parse_known_args(argv)
    databases, left_out = choose()
    python = [sys.executable, "-X", "dev"]
    tool = ["-m", "coverage", "run", "-m", "pytest"] if options.coverage else ["-m", "pytest"]
    tool += ["-p", failures.__name__]
    commands = {
        name: [*python, *tool, f"--db={name}", "-m", options.marks, *arguments]
        for name in databases
    }
    with told() as figures, tempfile.TemporaryDirectory() as directory:
        if options.jobs > 1:
            results = side_by_side(commands, options.jobs, Path(directory))
        else:
            results = {
                name: in_turn(name, command, Path(directory)) for name, command in commands.items()
            }
        texts = {path.name: path.read_text() for path in sorted(Path(directory).iterdir())}
    if figures:
        print("\n" + "\n".join(figures))
    # Nothing anywhere is no success: a misspelt argument looks like that.
    allowed = {0, NOTHING_COLLECTED} if 0 in results.values() else {0}
    failed = [name for name, code in results.items() if code not in allowed]
    if left_out:
        say(left_out)
    for name, text in texts.items():
        if text:
            print(f"\n=== {name}\n{text}", end="")
    print(
        "tests: "
        + (f"FAILED on {', '.join(failed)}" if failed else f"passed on {', '.join(databases)}")
    )
    return 1 if failed or (left_out and in_ci()) else 0


@contextmanager
def told() -> Iterator[list[str]]:
    """Collect the lines that the fault tests of all runs want to be read at the end."""
    lines: list[str] = []
    with tempfile.NamedTemporaryFile("r") as file:
        os.environ["GNL_CHAOS_REPORT"] = file.name
        yield lines
        del os.environ["GNL_CHAOS_REPORT"]
        lines += file.read().splitlines()


def choose() -> tuple[list[str], str]:
    """Return the databases to run on, and what to say about one that is left out."""
    missing = "" if os.environ.get("TEST_MYSQL_URL") else mariadb_missing()
    if not missing:
        return list(VENDORS), ""
    return [name for name in VENDORS if name != "mysql"], f"NOT TESTED ON MariaDB. {missing}"


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() in {"1", "true", "yes"}


def say(text: str) -> None:
    """Print one line that nobody overlooks."""
    line = f"!!! {text} !!!"
    print(f"\033[1;31m{line}\033[0m" if sys.stdout.isatty() else line, flush=True)


def noting(directory: Path, name: str) -> dict[str, str]:
    """Return the environment of a run that writes what fails into a file named `name`."""
    return {**os.environ, failures.FILE: str(directory / name)}


def in_turn(name: str, command: list[str], directory: Path) -> int:
    """Run one database's tests with their output as it comes."""
    print(f"\n=== {name}", flush=True)
    env = noting(directory, name)
    return subprocess.run(command, cwd=ROOT, env=env, check=False).returncode


def side_by_side(commands: dict[str, list[str]], jobs: int, directory: Path) -> dict[str, int]:
    """Run all, at most `jobs` at once; print each one's outcome when it is there."""

    def run(name: str) -> int:
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(
                [*commands[name], "-p", "no:cacheprovider"],
                cwd=ROOT,
                env=noting(directory, name),
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
            output.seek(0)
            lines = output.read().decode(errors="replace").rstrip().splitlines()
        shown = lines if done.returncode else lines[-1:]
        print("\n".join([f"=== {name}", *shown]), flush=True)
        return done.returncode

    with ThreadPoolExecutor(jobs) as pool:
        return dict(zip(commands, pool.map(run, commands), strict=True))


if __name__ == "__main__":
    sys.exit(main())
