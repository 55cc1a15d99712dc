"""Puts a question about the indexed files to the library's agent, as one more job of the run."""

from gnl_django import get_run
from gnl_django.models import Job
from testproject.demo.work import Run
from testproject.library.agent import QUESTION
from testproject.library.background import ask


class NoAnswer(Exception):
    """The agent's job has ended without an answer; the text says how."""


def put(run: Run) -> int:
    """Enqueue the question once a run; return the job's id."""
    return ask.enqueue({"text": QUESTION}, key=f"{run.name}:question")


def answer(job_id: int) -> str:
    """Return the answer as one line, "" while the agent is at work. Raises NoAnswer."""
    row = Job.objects.get(pk=job_id)
    if row.state == "succeeded":
        found = get_run(f"job:{job_id}")
        steps = 0 if found is None else found.steps
        turns = row.result["turns"]
        return (
            f"Asked the agent: {QUESTION} {row.result['text']} "
            f"({turns} answers of the model and {steps - turns} of tools, all recorded steps)."
        )
    if row.state in {"dead", "canceled"}:
        raise NoAnswer(f"the agent's job {job_id} is {row.state}: {row.error}")
    return ""
