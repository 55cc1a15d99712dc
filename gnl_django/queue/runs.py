"""What the queue answers about the durable runs of its jobs (runs.md R4a); registered at start.

`job:<id>` names the job itself; `sched:` and `wf:` ids are the text of their job's key.
"""

from collections.abc import Sequence

from gnl_django.core.registry import RunOwner
from gnl_django.queue.models import Job
from gnl_django.queue.operator import cancel_job
from gnl_django.queue.options import dedup

PREFIX = "job:"


def cancel(run_id: str, org: str, reason: str, using: str) -> bool:
    """Cancel the job of a run; False when it is over, or there is none."""
    found = _jobs([(run_id, org)], using)
    return cancel_job(found[run_id], reason, using=using) if found else False


def kept(runs: Sequence[tuple[str, str]], using: str) -> set[str]:
    """Return the run ids whose job still exists."""
    return set(_jobs(runs, using))


def _jobs(runs: Sequence[tuple[str, str]], using: str) -> dict[str, int]:
    """Return the ids of the jobs that exist, by run id."""
    numbers = {
        int(digits): run_id
        for run_id, _ in runs
        if run_id.startswith(PREFIX)
        and (digits := run_id.removeprefix(PREFIX)).isdecimal()
        and len(digits) < 19
    }
    keys = {dedup(org, run_id): run_id for run_id, org in runs if not run_id.startswith(PREFIX)}
    jobs = Job.objects.using(using)
    by_id = jobs.filter(id__in=list(numbers)).values_list("id", flat=True) if numbers else []
    by_key = jobs.filter(dedup__in=list(keys)).values_list("dedup", "id") if keys else []
    return {numbers[pk]: pk for pk in by_id} | {keys[key or ""]: pk for key, pk in by_key}


OWNER = RunOwner((PREFIX, "sched:", "wf:"), cancel=cancel, kept=kept)
