"""Rows and people for the admin's tests. Rows are written whole, as a worker leaves them."""

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django.contrib.auth.models import Permission, User

from gnl_django.models import Attempt, Job

EPOCH = datetime(2026, 11, 1, tzinfo=UTC)
FINAL = ("succeeded", "dead", "canceled")
TRACEBACK = (
    'Traceback (most recent call last):\n  File "/srv/shop/mail.py", line 31, in send\nKeyError: 7'
)


def new_job(state: str = "ready", **fields: Any) -> Job:
    """Return a row in `state` with everything that state asks for, not stored yet."""
    values: dict[str, Any] = {
        "kind": "mail.send",
        "state": state,
        "run_at": EPOCH,
        "enqueued_at": EPOCH,
        "payload": {"to": "a@b.c"},
    }
    if state == "running":
        values.update(
            claim_token=secrets.token_hex(16),
            lease_expires_at=EPOCH + timedelta(days=3_650),
            started_at=EPOCH,
            worker="w/host/1/abcdef",
            attempt=1,
        )
    if state in FINAL:
        values.update(started_at=EPOCH, finished_at=EPOCH + timedelta(minutes=1), attempt=5)
    if state == "dead":
        values.update(error_class="builtins.KeyError", error="KeyError: 7", error_key="0" * 16)
    return Job(**{**values, **fields})


def store(jobs: Sequence[Job]) -> list[int]:
    """Store rows and return their ids, in the order given."""
    before = Job.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
    Job.objects.bulk_create(jobs, batch_size=500)
    return list(Job.objects.filter(pk__gt=before).order_by("pk").values_list("pk", flat=True))


def make(state: str = "ready", **fields: Any) -> Job:
    """Store one row."""
    job = new_job(state, **fields)
    job.save(force_insert=True)
    return job


def fail(job: Job, number: int = 1, **fields: Any) -> Attempt:
    """Store a failed attempt of a job."""
    values: dict[str, Any] = {
        "job": job,
        "number": number,
        "revival": 0,
        "outcome": "failed",
        "error_class": "builtins.KeyError",
        "message": "KeyError: 7",
        "traceback": TRACEBACK,
        "worker": "w/host/1/abcdef",
        "claim_token": secrets.token_hex(16),
        "started_at": EPOCH,
        "finished_at": EPOCH + timedelta(seconds=3),
    }
    return Attempt.objects.create(**{**values, **fields})


def person(name: str, *codenames: str, staff: bool = True) -> User:
    """Store a user with permissions on jobs."""
    user = User.objects.create_user(name, password="pass", is_staff=staff)
    user.user_permissions.set(
        Permission.objects.filter(content_type__app_label="gnl_django", codename__in=codenames)
    )
    return user


def state_of(job: Job | int) -> str:
    """Return the state that is stored now."""
    pk = job if isinstance(job, int) else job.pk
    return Job.objects.values_list("state", flat=True).get(pk=pk)
