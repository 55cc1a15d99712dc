"""Every promised row of the specification's conformance tables has a test that cites it.

A test cites rows as `@pytest.mark.row("queue", "C17", "C18")`, also on a class, in `pytestmark` or
on one `pytest.param`. Read from the source, so that a row skipped on this database counts too.
"""

import ast
from pathlib import Path

TESTS = Path(__file__).resolve().parent


def rows(*spans: str) -> set[str]:
    """Return the ids of spans such as "C01-C23" and "C54"."""
    found = set()
    for span in spans:
        first, _, last = span.partition("-")
        prefix = first.rstrip("0123456789")
        digits = first[len(prefix) :]
        end = int((last or first)[len(prefix) :])
        found |= {f"{prefix}{n:0{len(digits)}d}" for n in range(int(digits), end + 1)}
    return found


#: By chapter. A chapter's later rows are added together with what they promise.
PROMISED = {
    "queue": rows("C01-C164"),
    "runs": rows("D01-D68", "D72-D88"),
    "studio": rows("C18-C30", "C53"),
}


def cited() -> dict[str, set[str]]:
    """Return the rows that the test files cite, by chapter."""
    found: dict[str, set[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "row"
                and ast.unparse(node.func.value) in {"pytest.mark", "mark"}
            ):
                words = [a.value for a in node.args if isinstance(a, ast.Constant)]
                chapter, *ids = map(str, words)
                found.setdefault(chapter, set()).update(ids)
    return found


def test_every_promised_row_is_cited_by_a_test() -> None:
    tested = cited()
    missing = {
        chapter: sorted(promised - tested.get(chapter, set()))
        for chapter, promised in PROMISED.items()
    }
    assert not {chapter: ids for chapter, ids in missing.items() if ids}


def test_spans_of_rows_are_read_inclusively() -> None:
    assert rows("C08-C11", "C99-C101", "7") == {
        *("C08", "C09", "C10", "C11", "C99", "C100", "C101", "7"),
    }
