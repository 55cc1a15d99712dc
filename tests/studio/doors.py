"""People in every role, the doors of the acts, and what a response says."""

import re
from typing import Any

from django.contrib.admin.models import LogEntry  # noqa: TID251 - the record of acts
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.test import Client

from gnl_django.models import Job
from tests.studio.rows import person

JOBS = "/admin/gnl_django/job/"

ROLES = ("anonymous", "user", "staff without", "viewer", "staff with", "superuser", "half")


def sign_in(role: str, **options: Any) -> Client:
    """Return a client of somebody in a role."""
    client = Client(**options)
    acts = ("retry_job", "cancel_job")
    if role == "user":
        client.force_login(person(role, "view_job", *acts, staff=False))
    elif role == "staff without":
        client.force_login(person(role))
    elif role == "viewer":
        client.force_login(person(role, "view_job"))
    elif role == "staff with":
        client.force_login(person(role, "view_job", *acts))
    elif role == "half":  # may act, but not see
        client.force_login(person(role, *acts))
    elif role == "superuser":
        user = person(role)
        user.is_superuser = True
        user.save()
        client.force_login(user)
    return client


def path(job: Job, op: str = "") -> str:
    """Return the address of a job's page, or of an act on it."""
    return f"{JOBS}{job.pk}/op/{op}/" if op else f"{JOBS}{job.pk}/change/"


def ticked(*jobs: Job, op: str = "retry", **more: str) -> dict[str, Any]:
    """Return the form of the list with jobs ticked."""
    ids = [str(job.pk) for job in jobs]
    return {"action": f"{op}_selected", "index": "0", "_selected_action": ids, **more}


def stated(page: HttpResponse) -> dict[str, str]:
    """Return the hidden fields of a confirm page."""
    found = re.findall(r'name="(upper|as_of)" value="([^"]*)"', page.content.decode())
    return {name: value.replace("&#x2B;", "+") for name, value in found}


def told(response: Any) -> list[str]:
    """Return the messages of a page."""
    return [str(message) for message in response.context["messages"]]


def records() -> list[str]:
    """Return what the admin's log says, oldest first."""
    return list(LogEntry.objects.order_by("pk").values_list("change_message", flat=True))


def looks(dead: Job) -> dict[str, str]:
    """Return the addresses of all pages that are only looked at."""
    return {
        "list": JOBS,
        "detail": path(dead),
        "retry": path(dead, "retry"),
        "cancel": path(dead, "cancel"),
        "retry all": f"{JOBS}op/retry/?state=dead",
        "history": f"{JOBS}{dead.pk}/history/",
    }


def sign_in_again(client: Client) -> Client:
    """Return the same session without the check of tokens."""
    other = Client()
    other.cookies = client.cookies
    return other


def sign_in_once() -> Client:
    """Return a superuser's client, also when there is one already."""
    user = User.objects.filter(username="superuser").first()
    if user is None:
        return sign_in("superuser")
    client = Client()
    client.force_login(user)
    return client
