"""The shape of the tree: small modules and functions, raw SQL in its rooms, nothing unfinished."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "gnl_django"
MODULE_LINES = 400
FUNCTION_LINES = 50

#: The store modules: the only ones with raw SQL (architecture: laws of the database).
STORES = (
    "core/db.py",
    "core/fleet.py",
    "core/statements.py",
    "runs/journal/",
    "events/store/",
    "events/sequencer.py",
    "queue/store/",
    "workflows/settlement.py",
    "scheduler/firing.py",
    "studio/store.py",
)
SQL = re.compile(
    r"\s*((SELECT|INSERT|UPDATE|DELETE|WITH)\b"
    r"|(?i:select\b.*\bfrom\b|insert\s+(ignore\s+)?into\b|update\b.*\bset\b|delete\s+from\b"
    r"|with\b.*\bas\s*\(|replace\s+into\b))",
    re.DOTALL,
)
#: Calls by which SQL text reaches the database beside the ORM.
RAW_CALLS = {"cursor", "raw", "extra", "RawSQL"}
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")


def modules() -> list[Path]:
    """Return the package's modules, migrations apart."""
    return [path for path in sorted(PACKAGE.rglob("*.py")) if "migrations" not in path.parts]


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def is_store(name: str) -> bool:
    return name.startswith(STORES)


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def docstrings(tree: ast.AST) -> set[int]:
    """Return the identities of the nodes that are docstrings or other bare strings."""
    return {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def raw_sql(source: str) -> list[int]:
    """Return the numbers of the lines that hold SQL text or hand SQL text to the database."""
    tree = ast.parse(source)
    prose = docstrings(tree)
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in prose and SQL.match(node.value):
                lines.append(node.lineno)
        elif isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name in RAW_CALLS:
                lines.append(node.lineno)
    return sorted(set(lines))


def test_the_package_is_found() -> None:
    assert len(modules()) > 10


def test_no_module_is_longer_than_400_lines() -> None:
    long = {
        name_of(path): count
        for path in modules()
        if (count := len(path.read_text().splitlines())) > MODULE_LINES
    }
    assert not long


def test_no_function_is_longer_than_50_lines() -> None:
    long = {
        f"{name_of(path)}:{function.lineno} {function.name}": count
        for path in modules()
        for function in functions(ast.parse(path.read_text()))
        if (count := (function.end_lineno or 0) - function.lineno + 1) > FUNCTION_LINES
    }
    assert not long


def test_every_module_says_its_role_in_a_docstring() -> None:
    silent = [
        name_of(path)
        for path in modules()
        if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert not silent


def test_raw_sql_stands_only_in_the_store_modules() -> None:
    found = [
        f"gnl_django/{name_of(path)}:{line}"
        for path in modules()
        if not is_store(name_of(path))
        for line in raw_sql(path.read_text())
    ]
    assert not found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("x = 'SELECT 1'", True),
        ("x = f'UPDATE {table} SET a = 1'", True),
        ("x = '''\n    with due as (select 1) select * from due'''", True),
        ("x = 'DELETE FROM job'", True),
        ("x = 'INSERT INTO job VALUES (1)'", True),
        ("with connection.cursor() as c: pass", True),
        ("Job.objects.raw(text)", True),
        ("def f():\n    'Select the rows that are due from the table.'", False),
        ("x = 'Update the settings first'", False),
        ("x = 'Selected rows from'", False),
        ("Job.objects.filter(state='ready').update(state='running')", False),
    ],
)
def test_the_search_for_raw_sql_knows_sql_from_prose(source: str, found: bool) -> None:
    assert bool(raw_sql(source)) is found


def test_every_store_rule_is_a_module_or_package_of_the_houses_floors() -> None:
    floors = {"core", "runs", "events", "queue", "workflows", "scheduler", "studio"}
    assert {rule.split("/")[0] for rule in STORES} <= floors


def test_nothing_in_the_tree_is_marked_as_unfinished() -> None:
    places = ["gnl_django", "testproject", "tests", "benchmarks", "docs"]
    kinds = {".py", ".md", ".html", ".css", ".js"}
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for place in places
        for path in sorted((ROOT / place).rglob("*"))
        if path.suffix in kinds
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if UNFINISHED.search(line)
    ]
    assert not found
