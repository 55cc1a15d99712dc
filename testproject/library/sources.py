"""Lists the Python source files installed in the running environment, with their owners.

The demo enqueues one job for each. Only files that exist are listed, each once, and none is left
out: what cannot be read or parsed is for the job to say.
"""

import importlib.metadata
import os
import platform
import sysconfig
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

# `.py-tpl`: the files from which Django's startproject and startapp make source files.
SUFFIXES = frozenset({".py", ".py-tpl"})
# Directories inside the standard library's that belong to other distributions.
FOREIGN = frozenset({"site-packages", "dist-packages"})


@dataclass(frozen=True, slots=True)
class Source:
    """A file and the distribution that installed it."""

    package: str
    path: str


def find_sources() -> list[Source]:
    """Return every installed source file: the largest distribution first, its files by path.

    The interpreter's own library counts as one more distribution, named after the interpreter.
    A path that two distributions claim belongs to the one found first.
    """
    owners: dict[str, str] = {}
    for package, path in (*_distributions(), *_standard_library()):
        if path not in owners and os.path.isfile(path):
            owners[path] = package
    sizes = Counter(owners.values())
    found = [Source(package, path) for path, package in owners.items()]
    return sorted(found, key=lambda source: (-sizes[source.package], source.package, source.path))


def sample(sources: list[Source], limit: int | None) -> list[Source]:
    """Return `limit` of `sources` at even distances, so that each owner keeps its share."""
    if limit is None or limit >= len(sources):
        return sources
    return [sources[number * len(sources) // limit] for number in range(limit)]


def _distributions() -> Iterator[tuple[str, str]]:
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        for file in distribution.files or ():
            if name and PurePath(file).suffix in SUFFIXES:
                yield name, os.path.normpath(os.path.abspath(str(distribution.locate_file(file))))


def _standard_library() -> Iterator[tuple[str, str]]:
    root = sysconfig.get_path("stdlib")
    for directory, inner, files in os.walk(root):
        inner[:] = sorted(set(inner) - FOREIGN)
        for file in sorted(files):
            if PurePath(file).suffix in SUFFIXES:
                yield platform.python_implementation(), os.path.join(directory, file)
