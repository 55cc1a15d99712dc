"""What the children of fault tests do; started by `tests.zygote` as "tests.chaos.run:<name>"."""

import random
from collections.abc import Callable
from functools import partial
from threading import Event
from time import monotonic
from typing import Any

from django.core.management import call_command

from gnl_django import NewJob, enqueue, enqueue_many, list_all_jobs, list_jobs, retry_jobs
from gnl_django.core import clock, failpoints, leases, lifelines
from gnl_django.core.db import reconnect
from gnl_django.core.leases import new_token
from gnl_django.core.registry import autodiscover
from gnl_django.models import Job
from gnl_django.queue.store import store_for
from gnl_django.queue.store.base import ClaimRequest
from gnl_django.runs import standing
from tests.chaos import durable, plants, telling
from tests.history import ClientLog, database_clock


def worker(options: dict[str, Any]) -> None:
    """Be `gnl_worker` with these options.

    `min_ttl` allows shorter leases than real ones, `connect` and `silence` less patience (s).
    """
    leases.MIN_TTL = options.pop("min_ttl", leases.MIN_TTL)
    lifelines.CONNECT = options.pop("connect", lifelines.CONNECT)
    lifelines.SILENCE = options.pop("silence", lifelines.SILENCE)
    autodiscover()
    telling.begin()
    telling.worker_starts()
    plants.plant_from_environment()
    call_command("gnl_worker", **options)


def stand(run_id: str, plan: dict[str, Any], lock_ttl: float) -> None:
    """Enter a durable run that stands alone, under a lock of `lock_ttl` seconds."""
    standing.LOCK_TTL = lock_ttl
    telling.begin()
    failpoints.arm_from_environment()
    durable.stand(run_id, durable.Plan(**plan))


def produce(log: str, calls: list[dict[str, Any]]) -> None:
    """Make these calls one after another: {"f": "enqueue" | "enqueue_many", "value": ..}."""
    autodiscover()
    telling.begin()
    failpoints.arm_from_environment()
    client = ClientLog(log)
    for call in calls:
        give(client, call["f"], call["value"])


def give(client: ClientLog, f: str, value: Any) -> Any:
    """Make one call of the API and log it; a mark is {"m", "payload", and options}."""
    if f == "enqueue_many":
        return client.call(f, lambda: enqueue_many([new_job(v) for v in value]), value=value)
    job = new_job(value)
    return client.call(f, lambda: enqueue(job.kind, job.payload, **_options(value)), value=value)


def walk(
    client: ClientLog, limit: int, *, between: Callable[[], object] = int, **scope: Any
) -> Any:
    """List jobs page by page and log which: those of `org=` (None: the ownerless), else all."""

    def work() -> dict[str, Any]:
        listed = partial(list_jobs if scope else list_all_jobs, limit=limit, **scope)
        began = database_clock("default")
        page = listed()
        first, ids = database_clock("default"), [item.id for item in page.items]
        while page.next_cursor:
            between()
            page = listed(cursor=page.next_cursor)
            ids += [item.id for item in page.items]
        return {"ids": ids, "began": began, "first": first, "ended": database_clock("default")}

    return client.call("walk", work, value=scope)


def new_job(mark: dict[str, Any]) -> NewJob:
    """Return the job of a mark."""
    return NewJob(mark.get("kind", "chaos.work"), mark["payload"], **_options(mark))


def _options(mark: dict[str, Any]) -> dict[str, Any]:
    names = ("org", "key", "delay", "max_attempts", "max_depth", "priority", "queue")
    return {name: mark[name] for name in names if mark.get(name) is not None}


def mark(m: str, do: str = "end", *, always: bool = False, **options: Any) -> dict[str, Any]:
    """Return what a client call gives: marker, payload in its canonical form, options."""
    seconds = float(options.pop("seconds", 0.0))
    payload = {"m": m, "do": do, "always": always, "seconds": seconds}
    return {"m": m, "payload": payload, **options}


def revive() -> None:
    """Retry all dead jobs, as an operator would."""
    autodiscover()
    telling.begin()
    failpoints.arm_from_environment()
    retry_jobs(Job.objects.filter(state="dead"))


def prune_all() -> None:
    """Delete everything that has ended, however short a time ago."""
    from django.conf import settings

    from gnl_django import conf
    from gnl_django.queue.retention import prune

    settings.GNL = {**settings.GNL, "KEEP_SUCCEEDED": 0, "KEEP_CANCELED": 0, "KEEP_DEAD": 0}
    conf.settings.cache_clear()
    autodiscover()
    failpoints.arm_from_environment()
    prune()


def nemesis_producer(log: str, name: str, seconds: float, seed: int, lanes: int) -> None:
    """Give jobs as they come for `seconds`: some fail, few kill, some wait, some share a key."""
    autodiscover()
    telling.begin()
    client = ClientLog(log, name)
    dice = random.Random(seed)  # noqa: S311 - a test repeats it
    until, number, pause = monotonic() + seconds, 0, Event()
    while monotonic() < until:
        marks = []
        for _ in range(dice.choice((1, 1, 1, 5, 20))):
            number += 1
            marks.append(_drawn(dice, f"{name}-{number}", lanes))
        if len(marks) == 1:
            if dice.random() < 0.1:
                marks[0]["key"] = f"key-{dice.randrange(200)}"
            answer = give(client, "enqueue", marks[0])
        else:
            answer = give(client, "enqueue_many", marks)
        if answer is None:
            reconnect("default")
        if dice.random() < 0.01:
            walk(client, 50, org=f"org-{dice.randrange(1, lanes)}")
        pause.wait(dice.uniform(0.0, 0.04))


def _drawn(dice: random.Random, m: str, lanes: int) -> dict[str, Any]:
    do = dice.choices(
        ("end", "fail", "bury", "die", "cancel", "wait"), (92, 4.5, 0.5, 1, 0.5, 1.5)
    )[0]
    org = dice.randrange(lanes)
    drawn = mark(m, do, seconds=dice.uniform(0.0, 0.3) if do == "wait" else 0.0)
    if org:
        drawn["org"] = f"org-{org}"
    if dice.random() < 0.05:
        drawn["delay"] = dice.uniform(0.0, 2.0)
    if org == 1:  # a lane of which nobody may have more
        drawn["max_depth"] = 15
    else:
        drawn["priority"] = dice.choice((0, 0, 0, 5))
    return drawn


def tell_time() -> None:
    """Print what time it is by this process's clock, in seconds since 1970."""
    print(clock.wall().timestamp())


def claim_and_vanish() -> None:
    """Claim the next job for somebody who is gone already; its lease runs out at once."""
    request = ClaimRequest(
        "default", ("chaos.work",), 1, "", True, (), new_token(), 0.001, "gone", None
    )
    assert len(store_for("default").claim(request).rows) == 1
