"""The demo's work and its operator."""

import pytest
from django.contrib.auth import authenticate

from gnl_django.models import Job
from testproject.demo.work import OPERATOR, enqueue_sources, make_operator, older_jobs
from testproject.library.sources import Source

SOURCES = [Source("paper", "/p/1"), Source("paper", "/p/2"), Source("glass", "/g/1")]


@pytest.mark.django_db
def test_each_file_becomes_one_job_of_its_owner() -> None:
    run = enqueue_sources(SOURCES)
    jobs = Job.objects.order_by("pk")
    assert [(job.org, job.payload["path"]) for job in jobs] == [
        (source.package, source.path) for source in SOURCES
    ]
    assert {job.kind for job in jobs} == {"library.reindex"}
    assert (run.first, run.last, run.jobs) == (jobs[0].pk, jobs[2].pk, 3)
    assert run.sizes == {"paper": 2, "glass": 1}


@pytest.mark.django_db
def test_the_next_run_has_jobs_of_its_own() -> None:
    first, second = enqueue_sources(SOURCES), enqueue_sources(SOURCES)
    assert second.first > first.last
    assert Job.objects.count() == 6


@pytest.mark.django_db
def test_unfinished_jobs_of_an_earlier_run_are_counted() -> None:
    first, second = enqueue_sources(SOURCES), enqueue_sources(SOURCES)
    assert (older_jobs(first), older_jobs(second)) == (0, 3)


@pytest.mark.django_db
def test_the_operator_can_log_in_and_see_everything() -> None:
    user = authenticate(username=OPERATOR, password=make_operator())
    assert user is not None
    assert user.is_staff
    assert user.is_superuser


@pytest.mark.django_db
def test_the_operator_of_an_earlier_run_gets_a_new_password() -> None:
    old, new = make_operator(), make_operator()
    assert old != new
    assert authenticate(username=OPERATOR, password=old) is None
    assert authenticate(username=OPERATOR, password=new) is not None
