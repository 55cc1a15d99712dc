"""Which jobs a command is about, and how it says what became of them.

Ids as arguments, dead jobs by the key of their error; used by `gnl_retry` and `gnl_cancel`.
"""

from argparse import ArgumentTypeError
from collections.abc import Mapping

from gnl_django.queue.models import Job
from gnl_django.queue.operator import BulkResult

BIGGEST_ID = 2**63 - 1


def job_id(text: str) -> int:
    """Return the id that an argument is; ArgumentTypeError for any other text."""
    if not (text.isascii() and text.isdigit() and 0 < int(text[:20]) <= BIGGEST_ID):
        raise ArgumentTypeError(f"{text!r} is no id of a job")
    return int(text)


def in_words(result: BulkResult, done: str) -> str:
    """Return e.g. "2 of 3 jobs made ready, 1 left as it was"; `done` says what a change is."""
    jobs = "job" if result.matched == 1 else "jobs"
    left = f", {result.skipped} left as {'it was' if result.skipped == 1 else 'they were'}"
    return f"{result.changed} of {result.matched} {jobs} {done}{left if result.skipped else ''}"


def dead_with_error(error_key: str, filters: Mapping[str, str], *, using: str) -> list[int]:
    """Return the ids of dead jobs with this error key, oldest first; found through their index."""
    rows = Job.objects.using(using).filter(state="dead", error_key=error_key, **filters)
    return list(rows.order_by("finished_at", "id").values_list("id", flat=True))
