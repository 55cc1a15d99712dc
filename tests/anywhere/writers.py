"""A web process that writes while workers work: on SQLite everybody shares one write lock.

Started as a child under Django's defaults (tests.chaos.test_sqlite): each turn does what views do,
with and without a transaction, and gives jobs. It prints how often, and ends with 1 when anything
was refused.
"""

from threading import Event
from time import monotonic

from django.contrib.auth.models import Group
from django.db import connections, transaction

from gnl_django import NewJob, cancel_job, enqueue, enqueue_many, retry_job
from gnl_django.models import Job

PAUSE = 0.0  # seconds between two requests


def main(name: str, seconds: float) -> None:
    """Write for so long, then print the number of turns."""
    until, turns, pause = monotonic() + seconds, 0, Event()
    while monotonic() < until:
        turn(name, turns)
        turns += 1
        pause.wait(PAUSE)
    connections.close_all()
    print(f"wrote {turns} turns", flush=True)


def turn(name: str, number: int) -> None:
    """Do what a handful of requests do."""
    with transaction.atomic():  # writes first, then reads
        Group.objects.create(name=f"{name}-{number}")
        enqueue("anywhere.write", f"by a job of {name}-{number}")
        assert Group.objects.filter(name=f"{name}-{number}").exists()
    enqueue("tests.quick", number, org=name)
    enqueue("tests.quick", number, key=f"{name}-{number}")
    enqueue_many([NewJob("tests.quick", n, org=f"lane-{n}") for n in range(3)])
    waiting = enqueue("tests.quick", number, delay=600)
    assert cancel_job(waiting)
    assert retry_job(waiting) == waiting
    assert Job.objects.filter(id=waiting).exists()
