"""An agent that answers a question about the indexed documents, without a network.

Its model is a few rules, so that it always says the same; a real one is any callable of the same
form (docs/runs.md). The handler `background.ask` runs it: each answer of the model and of a tool is
a recorded step, and a worker that takes over a killed one goes on where that stopped.
"""

import json
from typing import Any

from django.db.models import Count, Sum

from gnl_django import tool
from testproject.library.models import Document

QUESTION = "Which package defines the most classes?"
#: Packages that the model asks about in one turn.
AT_ONCE = 20


def search(text: str = "") -> list[str]:
    """Return the names of the packages that have `text` in their name, sorted."""
    found = Document.objects.filter(package__icontains=text).order_by("package")
    return list(found.values_list("package", flat=True).distinct())


def count(package: str) -> dict[str, Any]:
    """Return how many files and classes a package has."""
    found = Document.objects.filter(package=package)
    numbers = found.aggregate(files=Count("pk"), classes=Sum("classes", default=0))
    return {"package": package, **numbers}


# They only read: after a crash they may well be called once more.
TOOLS = (tool(search, mode="plain"), tool(count, mode="plain"))


def model(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> dict[str, Any] | str:
    """Answer as a language model would: with calls of tools, in the end with words."""
    answers = [message for message in messages if message["role"] == "tool"]
    if not answers:
        return calls([("search", {"text": ""})])
    packages = json.loads(answers[0]["content"])
    counted = [json.loads(message["content"]) for message in answers[1:]]
    if len(counted) < len(packages):
        chosen = packages[len(counted) : len(counted) + AT_ONCE]
        return calls([("count", {"package": package}) for package in chosen])
    if not counted:
        return "There are no packages."
    most = max(counted, key=lambda found: found["classes"])
    return f"{most['package']}, with {most['classes']} classes in {most['files']} files"


def calls(wanted: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """Return a reply that asks for these tools."""
    return {
        "content": "",
        "tool_calls": [
            {"id": f"call-{number}", "name": name, "arguments": arguments}
            for number, (name, arguments) in enumerate(wanted, 1)
        ],
    }
