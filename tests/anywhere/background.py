"""Handlers of the journey (tests.anywhere.journey): they use the project's database as users do."""

from typing import Any, NoReturn

from django.contrib.auth.models import Group
from django.db import transaction

from gnl_django import JobContext, job

LONG = 60.0


@job("anywhere.write", retry_delay=0.05)
def write(payload: str, ctx: JobContext) -> str:
    """Write a row and give a job in one transaction, after a first attempt that fails."""
    ctx.progress(1, 2, "half")
    with transaction.atomic():
        group = Group.objects.create(name=payload)
        ctx.enqueue("anywhere.child", {"parent": ctx.job_id})
        if ctx.attempt == 1:
            raise ValueError("the first attempt fails")
    return group.name


@job("anywhere.child")
def child(payload: dict[str, int], ctx: JobContext) -> int:
    """Return its parent."""
    return payload["parent"]


@job("anywhere.write_async")
async def write_async(payload: str, ctx: Any) -> str:
    """Write a row from the event loop."""
    await ctx.progress(1)
    group = await Group.objects.acreate(name=payload)
    return str(group.name)


@job("anywhere.fail", max_attempts=1)
def fail(payload: None) -> NoReturn:
    """Fail for good."""
    raise ValueError("asked to fail")


@job("anywhere.wait")
def wait(payload: None, ctx: JobContext) -> None:
    """Wait until told to stop."""
    ctx.signal.wait(LONG)
    ctx.signal.raise_if_revoked()


@job("anywhere.hold")
def hold(payload: float, ctx: JobContext) -> bool:
    """Hold a database connection inside a transaction for so many seconds, and say so."""
    with transaction.atomic():
        Group.objects.count()
        ctx.progress(1)
        return ctx.signal.wait(payload)
