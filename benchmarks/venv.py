"""The peers' virtual environments, made when first needed and kept in `.bench/`.

An environment is made again when the wanted packages or the interpreter change. What cannot be made
is a BenchError; the caller leaves the peer out and says so.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.plan import BenchError

NEWER = "3.13"  # Django 6.1 needs at least 3.12


def python_of(version: str) -> Path | None:
    """Return a Python of that version that runs; a pyenv shim of one not chosen does not."""
    for candidate in _candidates(version):
        if _version(candidate) == version:
            return candidate
    return None


def _candidates(version: str) -> Iterator[Path]:
    if path := shutil.which(f"python{version}"):
        yield Path(path)
    yield from sorted(Path.home().glob(f".pyenv/versions/{version}*/bin/python"))


def _version(python: Path) -> str:
    check = "import sys; print('%d.%d' % sys.version_info[:2])"
    found = subprocess.run([str(python), "-c", check], capture_output=True, text=True, check=False)
    return found.stdout.strip()


def make(directory: Path, base: Path, packages: Sequence[str]) -> Path:
    """Return the interpreter of the environment in `directory`, making it when it is not right."""
    python = directory / "bin" / "python"
    mark = directory / "packages.txt"
    wanted = "\n".join((_version(base), *packages))
    if python.exists() and mark.exists() and mark.read_text() == wanted:
        return python
    shutil.rmtree(directory, ignore_errors=True)
    directory.parent.mkdir(parents=True, exist_ok=True)
    _run([str(base), "-m", "venv", str(directory)])
    _run([str(python), "-m", "pip", "install", "--quiet", *packages])
    mark.write_text(wanted)
    return python


def versions(python: str, names: Sequence[str]) -> dict[str, str]:
    """Return the versions of the packages `names` that the interpreter finds, and its own."""
    ask = (
        "import importlib.metadata as m, json, platform, sys\n"
        "found = {'python': platform.python_version()}\n"
        "for name in sys.argv[1:]:\n"
        "    try: found[name] = m.version(name)\n"
        "    except m.PackageNotFoundError: pass\n"
        "print(json.dumps(found))"
    )
    done = subprocess.run([python, "-c", ask, *names], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
