"""The list of installed source files."""

import importlib.metadata
import os
import platform
from collections import Counter

import django
import pytest

from testproject.library.sources import Source, find_sources, sample


@pytest.fixture(scope="module")
def sources() -> list[Source]:
    return find_sources()


def test_each_distribution_owns_the_files_it_installed(sources: list[Source]) -> None:
    owners = {source.path: source.package for source in sources}
    assert owners[os.path.abspath(django.__file__)].lower() == "django"
    assert owners[os.path.abspath(pytest.__file__)] == "pytest"
    assert owners[os.path.abspath(os.__file__)] == platform.python_implementation()


def test_nothing_that_exists_is_left_out(sources: list[Source]) -> None:
    listed = {source.path for source in sources}
    files = importlib.metadata.distribution("Django").files or []
    paths = [os.path.abspath(str(file.locate())) for file in files if file.suffix == ".py"]
    assert len(paths) > 500
    assert {path for path in paths if os.path.isfile(path)} <= listed


def test_each_path_is_listed_once_and_exists(sources: list[Source]) -> None:
    assert len({source.path for source in sources}) == len(sources)
    assert all(os.path.isfile(source.path) for source in sources)


def test_the_standard_library_does_not_own_installed_packages(sources: list[Source]) -> None:
    own = [s.path for s in sources if s.package == platform.python_implementation()]
    assert own
    assert not [path for path in own if "site-packages" in path]


def test_the_largest_distribution_comes_first(sources: list[Source]) -> None:
    sizes = Counter(source.package for source in sources)
    order = list(dict.fromkeys(source.package for source in sources))
    assert [sizes[package] for package in order] == sorted(sizes.values(), reverse=True)


def test_files_that_cannot_be_python_are_listed_on_every_machine(sources: list[Source]) -> None:
    assert [source.path for source in sources if source.path.endswith("apps.py-tpl")]


def test_a_sample_keeps_each_owners_share() -> None:
    sources = [Source("big", f"/b/{n}") for n in range(80)] + [
        Source("small", f"/s/{n}") for n in range(20)
    ]
    chosen = sample(sources, 10)
    assert Counter(source.package for source in chosen) == {"big": 8, "small": 2}
    assert len(set(chosen)) == 10


@pytest.mark.parametrize("limit", [None, 3, 4])
def test_a_limit_that_is_no_limit_changes_nothing(limit: int | None) -> None:
    sources = [Source("a", f"/{n}") for n in range(3)]
    assert sample(sources, limit) == sources
