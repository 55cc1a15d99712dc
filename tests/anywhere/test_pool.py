"""Django's pool of connections (PostgreSQL's OPTIONS["pool"]): handlers may have all of it."""

from typing import Any

import pytest
from django.db import connection, connections

from gnl_django import enqueue_many
from gnl_django.core import db
from gnl_django.models import Attempt, Job
from gnl_django.queue.options import NewJob
from tests.anywhere.conftest import configured, troubles
from tests.conformance.helpers import Call
from tests.procs import Spawner
from tests.support import wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.postgres("the others have no pool of Django's"),
]

POOL: dict[str, Any] = {"pool": {"min_size": 1, "max_size": 2, "timeout": 60}}


@pytest.fixture
def anywhere_kinds() -> Any:
    """Register the handlers of tests.anywhere in this process."""
    from gnl_django.queue.kinds import JobKind
    from gnl_django.queue.options import kinds
    from tests.anywhere import background

    declared = [value for value in vars(background).values() if isinstance(value, JobKind)]
    for kind in declared:
        kinds.register(kind.kind, kind)
    yield
    for kind in declared:
        kinds.forget(kind.kind)


def test_a_worker_renews_and_gives_back_while_its_handlers_hold_the_whole_pool(
    spawn: Spawner, anywhere_kinds: Any
) -> None:
    env = configured({"default": {"OPTIONS": POOL}})
    ids = enqueue_many([NewJob("anywhere.hold", 60) for _ in range(2)])
    worker = spawn(["gnl_worker", "--ttl", "6", "--poll", "0.02", "--grace", "0"], env=env)
    rows = Job.objects.filter(id__in=ids, state="running")
    wait_until(lambda: rows.filter(progress__isnull=False).count() == 2, 20, describe=worker.output)
    claimed = dict(rows.values_list("id", "lease_expires_at"))

    def renewed() -> bool:
        now = rows.values_list("id", "lease_expires_at")
        return all(until > claimed[job_id] for job_id, until in now)

    wait_until(renewed, 20, describe=worker.output)
    worker.term()
    assert worker.wait() == 0
    assert set(Job.objects.values_list("state", "attempt")) == {("ready", 0)}, worker.output()
    assert set(Attempt.objects.values_list("outcome", flat=True)) == {"released"}
    assert not troubles(worker.output())


def test_a_thread_that_stands_outside_has_a_connection_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection.close()
    options = connection.settings_dict["OPTIONS"]
    monkeypatch.setitem(options, "pool", {"min_size": 0, "max_size": 1})

    def pooled() -> bool:
        from django.db import connection

        connection.ensure_connection()
        return connection.pool is not None

    def outside() -> bool:
        db.stand_outside_the_pool("default")
        return pooled()

    try:
        assert Call(pooled).result()
        assert not Call(outside).result()
        assert "pool" in options  # those of others are untouched
        # A thread that has a connection keeps it.
        assert Call(lambda: pooled() and outside()).result()
    finally:
        db.close_pools()
    wrapper: Any = connections["default"]
    assert not wrapper._connection_pools


def test_without_a_pool_nothing_is_changed() -> None:
    def same() -> bool:
        from django.db import connections

        before = connections["default"]
        db.stand_outside_the_pool("default")
        return connections["default"] is before

    assert Call(same).result()
