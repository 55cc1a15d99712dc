"""docs/runs.md says what happens: its examples are run, with a shop around them."""

from pathlib import Path

from tests import docs

#: What the examples take for granted.
SHOP = {
    "shop/__init__.py": "",
    "shop/models.py": """
from django.db import models


class Invoice(models.Model):
    order = models.IntegerField(default=0)
    charge = models.CharField(max_length=50, default="")
    number = models.CharField(max_length=50, default="")
""",
    "shop/prices.py": """
def of(order):
    return 10 * order
""",
    "shop/mail.py": """
sent = []
down = False


def send(text):
    if down:
        raise OSError("no mail server")
    sent.append(text)
""",
    "shop/payments.py": """
charges = {}
unwell = False


def charge(amount, reference):
    charges[reference] = amount
    if unwell:
        raise OSError("no answer")
    return f"charge of {amount}"


def find(reference):
    return f"charge of {charges[reference]}" if reference in charges else None
""",
    "shop/web.py": """
got = []


async def get(url):
    got.append(url)
    return url * 2
""",
    "shop/llm.py": """
asked = 0


def model(messages, tools):
    global asked
    asked += 1
    said = [m["content"] for m in messages if m["role"] == "tool"]
    wanted = [("invoices", {"order": 7}), ("refund", {"order": 7, "amount": 500}),
              ("refund", {"order": 7, "amount": 50})]
    if len(said) == len(wanted):
        return "; ".join(said)
    name, arguments = wanted[len(said)]
    return {"content": "", "tool_calls": [{"id": "1", "name": name, "arguments": arguments}]}
""",
    "shop_settings.py": """
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "gnl_django", "shop"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": "shop.db",
        "TEST": {"NAME": "test.db"},
        "OPTIONS": {
            "timeout": 20,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL;PRAGMA synchronous=OFF;",
        },
    }
}
USE_TZ = True
SECRET_KEY = "x"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
""",
    "pytest.ini": "[pytest]\n",
}

#: What the words around the examples promise.
MORE = """
from datetime import timedelta

import pytest
from gnl_django import get_run, list_steps
from gnl_django.models import Job
from gnl_django.testing import run_jobs, set_clock
from shop import llm, mail, payments, web
from shop.background import fulfil
from shop.fetching import fetch
from shop.models import Invoice
from shop.moving import move_year
from shop.operators import it_was_sent
from shop.research import complaint

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _calm(monkeypatch):
    monkeypatch.setattr(payments, "charges", {})
    monkeypatch.setattr(mail, "sent", [])


def test_a_charge_whose_answer_was_lost_is_found_and_not_made_again(monkeypatch):
    fulfil.enqueue({"order": 7})
    with set_clock() as clock:
        monkeypatch.setattr(payments, "unwell", True)
        run_jobs(raising=False)
        clock.advance(timedelta(minutes=1))
        run_jobs()
    job = Job.objects.get()
    assert (job.state, job.attempt) == ("succeeded", 2)
    assert payments.charges == {f"job:{job.id}/charge": 70}
    assert Invoice.objects.get().charge == "charge of 70"
    assert mail.sent == [f"invoice {job.result} for order 7"]


def test_a_mail_that_did_go_out_is_not_sent_again(monkeypatch):
    job_id = fulfil.enqueue({"order": 7})
    with set_clock() as clock:
        monkeypatch.setattr(mail, "down", True)
        run_jobs(raising=False)
        clock.advance(timedelta(minutes=1))
        run_jobs(raising=False)
        monkeypatch.setattr(mail, "down", False)
        it_was_sent(job_id)
        run_jobs()
    assert (Job.objects.get().state, mail.sent) == ("succeeded", [])


def test_a_run_that_stands_alone_is_done_once():
    Invoice.objects.bulk_create(Invoice() for _ in range(3))
    assert move_year(2026) == 3
    Invoice.objects.update(number="")
    assert move_year(2026) == 3
    assert set(Invoice.objects.values_list("number", flat=True)) == {""}
    keys = [step.key for step in list_steps("move-invoices-2026")]
    assert keys == ["numbers", "move", "move#2", "move#3"]
    assert get_run("move-invoices-2026").input == {"year": 2026}


def test_the_agent_is_told_what_a_tool_refuses():
    Invoice.objects.create(order=7)
    complaint.enqueue({"text": "It is broken."})
    run_jobs()
    words = Job.objects.get().result
    assert words.startswith("[") and words.endswith("charge of -50")
    assert "not more than 100 without a person" in words
    assert llm.asked == 4


def test_async_steps_are_numbered_in_the_order_of_their_calls():
    fetch.enqueue({"urls": ["a", "bb"]})
    run_jobs()
    job = Job.objects.get()
    assert (job.result, web.got) == (6, ["a", "bb"])
    assert [step.key for step in list_steps(f"job:{job.id}")] == ["page", "page#2"]
"""


def test_the_examples_of_the_docs_pass(tmp_path: Path) -> None:
    files = docs.examples("runs.md")
    text = (docs.ROOT / "docs" / "runs.md").read_text()
    assert text.count("```python") == len(files) == 6
    assert "6 passed" in docs.pytest_in(tmp_path, {**SHOP, **files, "test_more.py": MORE})
