"""The demo's question: it is put once a run, and its answer is one line."""

from collections import Counter

import pytest

from gnl_django import cancel_job
from gnl_django.models import Job
from gnl_django.testing import run_jobs
from testproject.demo.question import NoAnswer, answer, put
from testproject.demo.work import Run
from testproject.library.models import Document

RUN = Run("r", 1, 1, 1, Counter())

pytestmark = pytest.mark.django_db


def test_a_run_asks_once_and_gets_its_answer_as_a_line() -> None:
    Document.objects.create(path="a.py", package="paper", lines=1, functions=0, classes=3)
    job_id = put(RUN)
    assert put(RUN) == job_id
    assert answer(job_id) == ""
    assert run_jobs() == 1
    assert answer(job_id) == (
        "Asked the agent: Which package defines the most classes? paper, with 3 classes in 1 files "
        "(3 answers of the model and 2 of tools, all recorded steps)."
    )


def test_a_question_that_nobody_will_answer_is_said_to_be_so() -> None:
    job_id = put(RUN)
    cancel_job(job_id, "enough")
    with pytest.raises(NoAnswer, match=f"the agent's job {job_id} is canceled"):
        answer(job_id)
    assert Job.objects.count() == 1
