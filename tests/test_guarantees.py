"""The guarantee is printed word for word, and each part of it has a test that cites it."""

import hashlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
#: Of the paragraphs that begin with **G1** .. **G9**, joined by line ends.
DIGEST = "0d2fde68c149639ffc45156c9abe07d6a75a2568e0911ca1c198e149c53c895e"
#: Parts about what exists already; the others come with their floors.
KEPT = {"G1", "G2", "G3", "G8", "G9"}


@pytest.mark.row("reliability", "1")
def test_the_guarantee_is_printed_word_for_word() -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text()
    paragraphs = re.findall(r"^\*\*G\d\*\* .*$", text, re.MULTILINE)
    assert [paragraph[2:4] for paragraph in paragraphs] == [f"G{n}" for n in range(1, 10)]
    # Changing a word here is changing the promise: then this number changes with it, on purpose.
    assert hashlib.sha256("\n".join(paragraphs).encode()).hexdigest() == DIGEST


@pytest.mark.row("reliability", "1")
def test_each_part_of_the_guarantee_has_a_test_that_cites_it() -> None:
    cited = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        for names in re.findall(r'row\("guarantees", ([^)]*)\)', path.read_text()):
            cited |= set(re.findall(r"G\d", names))
    assert cited >= KEPT
