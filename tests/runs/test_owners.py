"""Who runs a handler is known around it, and nowhere else."""

from typing import Any

import pytest

from gnl_django import JobContext, run_handler_once
from gnl_django.runs.owners import current
from tests.conformance.conftest import Declare, MakeWorker
from tests.conformance.helpers import job_of

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_handler_has_an_owner_while_it_runs(declare: Declare, make_worker: MakeWorker) -> None:
    seen: list[Any] = []

    def handle(payload: Any, ctx: JobContext) -> None:
        owner = current.get()
        assert owner is not None
        right = owner.right
        seen.append((owner.run_id, owner.holder, owner.org, owner.using, owner.attempt))
        seen.append((owner.signal is ctx.signal, owner.scheduled_for, owner.entry))
        if right is not None:
            seen.append((right.table, right.id, right.token == ctx.claim_token, right.state))

    job_id = declare("t.owner", handle).enqueue(org="acme")
    make_worker().run_once()
    assert job_of(job_id).state == "succeeded"
    assert seen == [
        (f"job:{job_id}", f"job:{job_id}", "acme", "default", 1),
        (True, None, None),
        ("gnl_django_job", job_id, True, "running"),
    ]
    assert current.get() is None
    seen.clear()
    run_handler_once("t.owner", context={"run_id": "try", "attempt": 3})
    assert seen == [("try", "try", "", "default", 3), (True, None, None)]
    assert current.get() is None


def test_an_owner_is_forgotten_however_the_handler_ends(declare: Declare) -> None:
    def handle(payload: Any, ctx: JobContext) -> None:
        raise SystemExit

    declare("t.owner", handle)
    with pytest.raises(SystemExit):
        run_handler_once("t.owner")
    assert current.get() is None
