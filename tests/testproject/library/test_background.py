"""The demo's handler: what it stores, how it fails, and that it may be repeated."""

import hashlib
from pathlib import Path

import pytest

from gnl_django import Worker
from gnl_django.models import Attempt, Job
from testproject.library.background import Reindex, reindex
from testproject.library.models import Document

SOURCE = '''"""A module."""
import os, sys
from . import near
from ..far import thing
from collections import Counter

class One:
    def method(self):
        async def inner(): ...

class Two(One): ...
'''


def write(path: Path, content: str | bytes) -> Reindex:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return Reindex(path=str(path), package="paper")


@pytest.mark.django_db
def test_a_file_is_stored_as_one_document(tmp_path: Path) -> None:
    payload = write(tmp_path / "one.py", SOURCE)
    result = reindex(payload)
    document = Document.objects.get()
    assert (document.path, document.package) == (payload.path, "paper")
    assert (document.lines, document.functions, document.classes) == (11, 2, 2)
    assert document.imports == [".", "..far", "collections", "os", "sys"]
    assert document.sha256 == hashlib.sha256(SOURCE.encode()).hexdigest()
    assert result == {"lines": 11, "functions": 2, "classes": 2, "imports": 5}


@pytest.mark.django_db
def test_the_same_file_again_leaves_the_same_row(tmp_path: Path) -> None:
    payload = write(tmp_path / "one.py", SOURCE)
    reindex(payload)
    before = Document.objects.values().get()
    reindex(payload)
    assert Document.objects.values().get() == before


@pytest.mark.django_db
def test_a_changed_file_replaces_the_whole_row(tmp_path: Path) -> None:
    path = tmp_path / "one.py"
    reindex(write(path, SOURCE))
    reindex(Reindex(path=write(path, "x = 1").path, package="glass"))
    document = Document.objects.get()
    assert (document.package, document.lines, document.functions) == ("glass", 1, 0)
    assert (document.classes, document.imports) == (0, [])


@pytest.mark.django_db
def test_paths_that_differ_in_case_only_are_two_documents(tmp_path: Path) -> None:
    reindex(write(tmp_path / "one.py", ""))
    reindex(write(tmp_path / "ONE.py", ""))
    assert Document.objects.count() == 2


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("content", "lines"), [("", 0), ("x = 1", 1), ("x = 1\n", 1), ("x = 1\r\ny = 2\r\n", 2)]
)
def test_lines_are_counted_with_and_without_a_last_newline(
    content: str, lines: int, tmp_path: Path
) -> None:
    reindex(write(tmp_path / "one.py", content))
    assert Document.objects.get().lines == lines


@pytest.mark.django_db
def test_a_file_in_a_declared_encoding_is_read_in_it(tmp_path: Path) -> None:
    reindex(write(tmp_path / "one.py", "# coding: latin-1\nname = 'caf\xe9'\n".encode("latin-1")))
    assert Document.objects.get().lines == 2


BROKEN = {
    "no Python": (b"print 'old'\n", SyntaxError),
    "not UTF-8": (b"x = 1\nname = 'caf\xe9'\n", (SyntaxError, UnicodeDecodeError)),
    "not its declared encoding": (b"# coding: ascii\nx = 1\n# caf\xe9\n", UnicodeDecodeError),
    "unknown encoding": (b"# coding: no-such-code\n", SyntaxError),
    "a NUL byte": (b"x = 1\x00\n", (SyntaxError, ValueError)),
}


@pytest.mark.django_db
@pytest.mark.parametrize("case", BROKEN)
def test_a_file_that_cannot_be_read_as_python_fails_and_stores_nothing(
    case: str, tmp_path: Path
) -> None:
    content, error = BROKEN[case]
    with pytest.raises(error):
        reindex(write(tmp_path / "one.py", content))
    assert not Document.objects.exists()


@pytest.mark.django_db
def test_a_file_that_broke_keeps_its_last_good_document(tmp_path: Path) -> None:
    path = tmp_path / "one.py"
    reindex(write(path, "x = 1\n"))
    with pytest.raises(SyntaxError):
        reindex(write(path, "x = = 1\n"))
    assert Document.objects.get().lines == 1


@pytest.mark.django_db
def test_a_missing_file_fails(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        reindex(Reindex(path=str(tmp_path / "none.py"), package="paper"))


@pytest.mark.django_db(transaction=True)
def test_a_worker_indexes_good_files_and_buries_broken_ones_with_their_traceback(
    tmp_path: Path,
) -> None:
    good = reindex.enqueue(write(tmp_path / "good.py", SOURCE), org="paper")
    bad = reindex.enqueue(write(tmp_path / "bad.py", "x = = 1\n"), org="paper", max_attempts=1)
    Worker(poll=0.05).run_until_idle()
    assert Job.objects.get(pk=good).state == "succeeded"
    assert Job.objects.get(pk=good).result["functions"] == 2
    job = Job.objects.get(pk=bad)
    assert (job.state, job.error_class) == ("dead", "builtins.SyntaxError")
    attempt = Attempt.objects.get(job=bad)
    assert "background.py" in attempt.traceback
    assert "bad.py" in attempt.traceback
    assert list(Document.objects.values_list("path", flat=True)) == [str(tmp_path / "good.py")]


@pytest.mark.django_db(transaction=True)
def test_a_broken_file_gets_one_more_attempt(tmp_path: Path) -> None:
    bad = reindex.enqueue(write(tmp_path / "bad.py", "x = = 1\n"))
    Worker(poll=0.05).run_until_idle()
    job = Job.objects.get(pk=bad)
    assert (job.state, job.attempt, job.max_attempts) == ("scheduled", 1, 2)
    assert 0 < (job.run_at - job.started_at).total_seconds() < 2
