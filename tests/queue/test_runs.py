"""What the queue answers about the runs of its jobs."""

import pytest

from gnl_django.models import Job
from gnl_django.queue import runs
from gnl_django.queue.kinds import JobKind
from gnl_django.queue.options import dedup

pytestmark = pytest.mark.django_db


def test_a_run_is_found_by_its_jobs_id_or_key(kind: "JobKind[object]") -> None:
    by_id, by_key = kind.enqueue(), kind.enqueue(org="acme")
    Job.objects.filter(id=by_key).update(dedup=dedup("acme", "wf:1:2"))
    asked = [
        (f"job:{by_id}", ""), ("job:0", ""), ("job:x", ""), ("job:", ""), (f"job:{'9' * 40}", ""),
        ("job:²", ""), ("job:-1", ""), ("wf:1:2", "acme"), ("wf:1:2", "other"), ("sched:1:1", ""),
    ]  # fmt: skip
    assert runs.kept(asked, "default") == {f"job:{by_id}", "wf:1:2"}
    assert runs.kept([], "default") == set()


def test_a_cancel_reaches_the_job_once(kind: "JobKind[object]") -> None:
    job_id = kind.enqueue()
    assert runs.cancel(f"job:{job_id}", "", "why", "default") is True
    assert runs.cancel(f"job:{job_id}", "", "again", "default") is False
    assert runs.cancel("job:0", "", "", "default") is False
    assert Job.objects.get(id=job_id).cancel_reason == "why"


def test_the_owner_has_the_queues_prefixes() -> None:
    assert runs.OWNER.prefixes == ("job:", "sched:", "wf:")
