"""Which jobs a command is about: ids as arguments, and dead jobs by the key of their error."""

from argparse import ArgumentTypeError
from collections.abc import Mapping

from gnl_django.queue.models import Job

BIGGEST_ID = 2**63 - 1


def job_id(text: str) -> int:
    """Return the id that an argument is; ArgumentTypeError for any other text."""
    if not (text.isascii() and text.isdigit() and 0 < int(text[:20]) <= BIGGEST_ID):
        raise ArgumentTypeError(f"{text!r} is no id of a job")
    return int(text)


def dead_with_error(error_key: str, filters: Mapping[str, str], *, using: str) -> list[int]:
    """Return the ids of dead jobs with this error key, oldest first; found through their index."""
    rows = Job.objects.using(using).filter(state="dead", error_key=error_key, **filters)
    return list(rows.order_by("finished_at", "id").values_list("id", flat=True))
