"""An async view: the queue's calls are synchronous, as Django's transactions are."""

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import SynchronousOnlyOperation

from gnl_django import enqueue
from gnl_django.models import Job
from tests.conformance.conftest import Declare, declare

__all__ = ["declare"]

pytestmark = pytest.mark.django_db(transaction=True)


def test_an_async_view_enqueues_through_sync_to_async(declare: Declare) -> None:
    declare("t.plain")

    async def view() -> int:
        return await sync_to_async(enqueue)("t.plain", {"a": 1}, org="acme")

    assert Job.objects.get(id=async_to_sync(view)()).org == "acme"


def test_on_the_event_loop_itself_it_is_refused_before_anything_is_written(
    declare: Declare,
) -> None:
    kind = declare("t.plain")

    async def view() -> None:
        kind.enqueue()

    with pytest.raises(SynchronousOnlyOperation):
        async_to_sync(view)()
    assert not Job.objects.exists()
