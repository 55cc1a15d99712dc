"""The demo's handlers, run by a worker: one reads a source file and stores what it found.

Running that twice leaves the same row, so an attempt that was cut off may simply be repeated. The
other one answers questions about all rows, and resumes where an attempt was cut off.
"""

import ast
import hashlib
from importlib.util import decode_source
from pathlib import Path
from typing import Any

from django.db import connections, router
from pydantic import BaseModel

from gnl_django import JobContext, job, run_agent
from testproject.library import agent
from testproject.library.models import Document

KIND = "library.reindex"
ASK_KIND = "library.ask"
COLUMNS = ["package", "lines", "functions", "classes", "imports", "sha256"]


class Reindex(BaseModel):
    """The file to read, and the distribution that owns it."""

    path: str
    package: str


# One more try after a second: a file may have been read while it was being replaced. A file that
# is really broken is dead soon after, with the parser's own traceback.
@job(KIND, max_attempts=2, retry_delay=1)
def reindex(payload: Reindex) -> dict[str, int]:
    """Parse the file of `payload` and store its row; return what was counted.

    Errors are left as they come: OSError for a file that cannot be read, SyntaxError or
    UnicodeDecodeError for one that is no Python.
    """
    document = read(payload)
    store(document)
    return {
        "lines": document.lines,
        "functions": document.functions,
        "classes": document.classes,
        "imports": len(document.imports),
    }


def read(payload: Reindex) -> Document:
    """Return the unsaved row that describes the file as it is now."""
    content = Path(payload.path).read_bytes()
    text = decode_source(content)
    functions = classes = 0
    imports: set[str] = set()
    for node in ast.walk(ast.parse(text, payload.path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions += 1
        elif isinstance(node, ast.ClassDef):
            classes += 1
        elif isinstance(node, ast.Import):
            imports.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            imports.add("." * node.level + (node.module or ""))
    return Document(
        path=payload.path,
        package=payload.package,
        lines=text.count("\n") + (text[-1:] not in ("", "\n")),
        functions=functions,
        classes=classes,
        imports=sorted(imports),
        sha256=hashlib.sha256(content).hexdigest(),
    )


def store(document: Document) -> None:
    """Insert the row, or replace the one its path has, in one statement."""
    connection = connections[router.db_for_write(Document)]
    targets = connection.features.supports_update_conflicts_with_target
    Document.objects.bulk_create(
        [document],
        update_conflicts=True,
        unique_fields=["path"] if targets else None,
        update_fields=COLUMNS,
    )


class Question(BaseModel):
    """What somebody wants to know about the documents."""

    text: str = agent.QUESTION


@job(ASK_KIND, max_attempts=3, retry_delay=1)
def ask(payload: Question, ctx: JobContext) -> dict[str, Any]:
    """Let the agent answer; return its words and how often its model was asked."""
    answer = run_agent(ctx.run_id, agent.model, agent.TOOLS, payload.text)
    return {"text": answer["text"], "turns": answer["turns"]}
