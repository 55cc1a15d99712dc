"""The virtual environment of django-tasks-db: Django 6.1 on Python 3.13, made when first needed.

It lives in `.bench/` and is made again when the wanted packages change. Without a Python 3.13 there
is none, and the caller leaves the peer out.
"""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from benchmarks.plan import BenchError

PACKAGES = ("django-tasks-db", "django==6.1.*", "psycopg[binary]>=3.2")
VERSION = "3.13"


def python_313() -> Path | None:
    """Return a Python 3.13 that runs; a pyenv shim of a version that is not chosen does not."""
    for candidate in _candidates():
        check = "import sys; print('%d.%d' % sys.version_info[:2])"
        found = subprocess.run(
            [str(candidate), "-c", check], capture_output=True, text=True, check=False
        )
        if found.stdout.strip() == VERSION:
            return candidate
    return None


def _candidates() -> Iterator[Path]:
    if path := shutil.which(f"python{VERSION}"):
        yield Path(path)
    yield from sorted(Path.home().glob(f".pyenv/versions/{VERSION}*/bin/python"))


def make(directory: Path, base: Path) -> Path:
    """Return the interpreter of the environment in `directory`, making it when it is not right."""
    python = directory / "bin" / "python"
    mark = directory / "packages.txt"
    wanted = "\n".join(PACKAGES)
    if python.exists() and mark.exists() and mark.read_text() == wanted:
        return python
    shutil.rmtree(directory, ignore_errors=True)
    directory.parent.mkdir(parents=True, exist_ok=True)
    _run([str(base), "-m", "venv", str(directory)])
    _run([str(python), "-m", "pip", "install", "--quiet", *PACKAGES])
    mark.write_text(wanted)
    return python


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
