"""Many jobs: workers beside producers, a small lane beside a large one, memory (C56, C108, C154).

`make chaos` runs the long forms.
"""

import os
import random
from collections import Counter
from threading import Event, Lock
from time import monotonic
from typing import Any

import psutil
import pytest

from gnl_django import NewJob, cancel_job, enqueue, enqueue_many, list_all_jobs, retry_job
from gnl_django.models import Attempt, Job
from tests.conformance import support_claim as s
from tests.conformance.conftest import Declare, MakeWorker
from tests.procs import Spawner
from tests.support import vendor, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

MANY = 8
SECONDS = min(600.0, float(os.environ.get("GNL_CHAOS_SECONDS", "120"))) / 2
SEED = int(os.environ.get("GNL_CHAOS_SEED", "1"))
KEYS = [f"key-{number}" for number in range(30)]


class Crowd:
    """Eight producers; each does what the dice say, and every job notes how often it ran."""

    def __init__(self, declare: Declare) -> None:
        self._lock = Lock()
        self.ran: Counter[int] = Counter()
        self.given: set[int] = set()

        def work(payload: Any, ctx: Any) -> None:
            with self._lock:
                self.ran[ctx.job_id] += 1
            if payload == "fail" and ctx.attempt == 1:
                raise ValueError("once")

        self.kind = declare("load.work", work, retry_delay=0)

    def give(self, dice: random.Random) -> None:
        """Make one call as applications do; whatever it raises ends the test."""
        org = f"org-{dice.randrange(10)}"
        payload = "fail" if dice.random() < 0.1 else None
        act = dice.randrange(10)
        if act < 4:
            ids = [enqueue(self.kind, payload, org=org, priority=dice.randrange(3))]
        elif act < 6:
            ids = [enqueue(self.kind, payload, org="keys", key=dice.choice(KEYS))]
        elif act < 8:
            keys: list[str | None] = [*dice.sample(KEYS, 3), None, None]
            ids = enqueue_many(
                [NewJob(self.kind, payload, org="keys", key=key) for key in sorted(keys, key=str)]
            )
        elif act == 8:
            ids = [enqueue(self.kind, payload, org=org, delay=dice.uniform(0, 0.2))]
            cancel_job(ids[0], "no longer")
            retry_job(ids[0])
        else:
            ids = []
            list_all_jobs(limit=20)
        with self._lock:
            self.given.update(ids)


def play(declare: Declare, make_worker: MakeWorker, *, calls: int = 0, seconds: float = 0) -> None:
    """Let eight workers and eight producers loose; nobody may see an error, nothing is lost."""
    crowd, errors, pause = Crowd(declare), [], Event()
    until = monotonic() + seconds

    def produce(seed: int) -> None:
        dice, made = random.Random(seed), 0  # noqa: S311 - SEED repeats it
        while made < calls or monotonic() < until:
            crowd.give(dice)
            made += 1
            pause.wait(dice.uniform(0, 0.01))

    def failed(error: BaseException, job: object) -> None:
        if job is None:  # a pass, not a handler
            errors.append(error)

    workers = [
        make_worker(concurrency=2, max_poll=0.1, on_error=failed, max_attempts=5)
        for _ in range(MANY)
    ]
    for worker in workers:
        worker.start()
    with s.threads() as go:
        for producer in [go(produce, SEED * 100 + number) for number in range(MANY)]:
            producer.result(seconds + 60)
    wait_until(lambda: not Job.objects.filter(finished_at=None).exists(), 60)
    for worker in workers:
        assert worker.stop(30)
    assert errors == []
    ids = set(Job.objects.values_list("id", flat=True))
    assert ids == crowd.given
    assert set(Job.objects.values_list("state", flat=True)) <= {"succeeded", "canceled"}
    # Each ran once, and once more where it failed; one that was canceled while it ran ran too.
    again = Counter(Attempt.objects.values_list("job_id", flat=True))
    succeeded = Job.objects.filter(state="succeeded").values_list("id", flat=True)
    assert crowd.ran == again + Counter(list(succeeded))
    assert set(Attempt.objects.values_list("outcome", flat=True)) <= {"failed", "canceled"}


@pytest.mark.row("queue", "C56")
def test_eight_workers_beside_eight_producers_raise_no_error_and_lose_nothing(
    declare: Declare, make_worker: MakeWorker
) -> None:
    play(declare, make_worker, calls=12)


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.row("queue", "C56")
@pytest.mark.mysql("InnoDB locks gaps: the others' locks are those of the short form")
def test_eight_workers_beside_eight_producers_for_minutes(
    declare: Declare, make_worker: MakeWorker
) -> None:
    play(declare, make_worker, seconds=SECONDS)


@pytest.mark.row("queue", "C154")
@pytest.mark.parametrize("n", [1, 10])
def test_a_small_lane_is_done_long_before_the_large_one_beside_it(declare: Declare, n: int) -> None:
    declare(s.KIND)
    s.fill(10_000, lane="0")
    s.fill(10, lane="1")
    rings, store, claims = s.rings(), s.store(), 0
    while Job.objects.filter(state="ready", org="lane-1").exists():
        taken = rings.claim(store, "default", n)
        claims += len(taken.claimed.rows)
        assert claims <= 20 + n, f"still waiting on {vendor()}"
    assert claims >= 10


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.row("queue", "C108")
def test_the_memory_of_a_worker_is_flat_over_30000_jobs_though_debug_is_on(spawn: Spawner) -> None:
    enqueue_many([NewJob("tests.quick", number) for number in range(30_000)])
    worker = spawn(["gnl_worker", "--concurrency", "10"], env={"DEBUG": "1"})

    def memory_after(done: int) -> float:
        wait_until(
            lambda: Job.objects.filter(state="succeeded").count() >= done,
            300,
            describe=worker.output,
        )
        return psutil.Process(worker.pid).memory_info().rss / 2**20

    before, after = memory_after(10_000), memory_after(30_000)
    worker.term()
    assert worker.wait() == 0
    assert after - before < 16, f"{before:.0f} MiB grew to {after:.0f}"
