"""Puts the demo's work into the queue, and makes the person who watches it."""

import hashlib
import secrets
from collections import Counter
from dataclasses import dataclass

from django.contrib.auth import get_user_model

from gnl_django import NewJob, enqueue_many
from gnl_django.models import Job
from testproject.library.background import KIND, Reindex
from testproject.library.sources import Source

OPERATOR = "operator"
UNFINISHED = ("scheduled", "ready", "running")
MANY = 10_000  # where the count of older jobs stops


@dataclass(frozen=True)
class Run:
    """One run of the demo: its jobs are those of the demo's kind between the two ids."""

    name: str
    first: int
    last: int
    jobs: int
    sizes: Counter[str]  # jobs by organization


def make_operator() -> str:
    """Make the superuser `operator`, or give the present one a new password; return it."""
    users = get_user_model()._default_manager
    password = secrets.token_urlsafe(9)
    user, _ = users.get_or_create(username=OPERATOR)
    user.is_staff = user.is_superuser = user.is_active = True
    user.set_password(password)
    user.save()
    return password


def enqueue_sources(sources: list[Source]) -> Run:
    """Enqueue one job for each of `sources`, all in one transaction, and return the run.

    The owner is the job's organization. The key holds the run's name, so a run never enqueues a
    file twice and the next run enqueues it again.
    """
    name = secrets.token_hex(4)
    ids = enqueue_many(
        [
            NewJob(
                KIND,
                Reindex(path=source.path, package=source.package),
                org=source.package,
                key=f"{name}:{hashlib.sha256(source.path.encode()).hexdigest()[:32]}",
            )
            for source in sources
        ]
    )
    sizes = Counter(source.package for source in sources)
    return Run(name, min(ids, default=0), max(ids, default=0), len(set(ids)), sizes)


def older_jobs(run: Run) -> int:
    """Return how many unfinished jobs an earlier run has left in front of `run`, up to MANY."""
    older = Job.objects.filter(kind=KIND, pk__lt=run.first).order_by()
    return sum(older.filter(state=state)[:MANY].count() for state in UNFINISHED)
