"""Text that tries to be more than text: in every field of a job, on every page (security.md X)."""

from collections import Counter
from html.parser import HTMLParser
from typing import Any

import pytest
from django.test import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from gnl_django.models import Attempt, Job
from tests.studio.rows import fail, make, person

JOBS = "/admin/gnl_django/job/"
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</script></pre></td></table>",
    "</pre><style>*{display:none}</style>",
    "' onmouseover='alert(1)",
    "javascript:alert(1)",
    "https://evil.example/",
    "{{7*7}}{% csrf_token %}",
    "a\u2028b\u2029c",
    "\u202egnp.exe",
    "&lt;b&gt; &amp; &#x3c;",
    "%s %% %(x)s {0} {}",
    "\r\n\r\nSet-Cookie: x=y",
    "x" * 10_000,
]
WATCHED = {"href", "src", "style", "action", "formaction"}

pytestmark = pytest.mark.django_db


class Shape(HTMLParser):
    """The tags of a page, and those of its attributes that could do something."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.doing: Counter[tuple[str, str | None]] = Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        for name, value in attrs:
            if name in WATCHED or name.startswith("on"):
                self.doing[name, value] += 1

    def handle_endtag(self, tag: str) -> None:
        self.tags[f"/{tag}"] += 1


def shape_of(page: str) -> Shape:
    shape = Shape()
    shape.feed(page)
    shape.close()
    return shape


def texts() -> SearchStrategy[str]:
    return st.lists(st.sampled_from(HOSTILE), min_size=1, max_size=3).map("".join)


def dress(job: Job, text: Any) -> None:
    """Give a job and its attempt a text wherever one may stand."""
    keys = {"kind": 128, "queue": 64, "org": 128, "key": 255, "run_id": 255, "worker": 100}
    names = {name: text(name)[:size] for name, size in keys.items()}
    Job.objects.filter(pk=job.pk).update(
        **names,
        error_key=text("error_key")[:16],
        error_class=text("error_class")[:255],
        error=text("error")[:8_192],
        note=text("note")[:255],
        cancel_reason=text("cancel_reason")[:500],
        payload={text("key"): [text("payload")]},
        meta={"m": text("meta")},
        result={"r": text("result")},
        progress={"message": text("progress")},
    )
    Attempt.objects.filter(job=job).update(
        error_class=text("error_class")[:255],
        message=text("message")[:8_192],
        traceback=text("traceback")[:32_768],
        worker=text("worker")[:100],
    )


def pages(client: Client, job: Job) -> list[str]:
    found = []
    for url in (
        JOBS,
        f"{JOBS}?state={job.state}",
        f"{JOBS}{job.pk}/change/",
        f"{JOBS}{job.pk}/op/retry/",
        f"{JOBS}{job.pk}/history/",
    ):
        response = client.get(url)
        assert response.status_code == 200
        found.append(response.content.decode())
    return found


@pytest.mark.row("security", "X1", "X2", "X4")
@pytest.mark.row("studio", "C63")
@pytest.mark.parametrize("state", ["dead", "canceled"])
@settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_hostile_text_adds_no_markup_anywhere(client: Client, state: str, data: Any) -> None:
    Job.objects.all().delete()
    client.force_login(_operator())
    job = make(state, payload={"a": 1}, result=1, progress=1, meta={"m": 1}, org="acme")
    fail(job)
    dress(job, lambda name: "harmless")
    harmless = [shape_of(page) for page in pages(client, job)]

    dress(job, lambda name: data.draw(texts(), label=name))

    for found, expected in zip(pages(client, job), harmless, strict=True):
        shape = shape_of(found)
        assert shape.tags == expected.tags
        assert shape.doing == expected.doing


def _operator() -> Any:
    from django.contrib.auth.models import User

    return User.objects.filter(username="operator").first() or person(
        "operator", "view_job", "retry_job", "cancel_job"
    )


@pytest.mark.row("security", "X3")
@pytest.mark.row("studio", "B2")
def test_pages_hold_no_script_and_no_style_of_their_own(client: Client) -> None:
    client.force_login(_operator())
    job = make("dead")
    fail(job)
    for page in pages(client, job):
        shape = shape_of(page)
        assert shape.tags["style"] == 0
        assert not [name for name, _ in shape.doing if name == "style" or name.startswith("on")]
        hosts = [value for name, value in shape.doing if name in ("src", "href") and value]
        assert not [value for value in hosts if value.startswith(("http", "//", "javascript:"))]
