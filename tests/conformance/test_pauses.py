"""Pausing queues and lanes: what a worker then leaves alone (studio.md C18-C28)."""

from collections.abc import Callable
from datetime import timedelta
from threading import Event
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from gnl_django import (
    NewJob,
    QueueDepthExceeded,
    Worker,
    enqueue,
    enqueue_many,
    pause_queue,
    resume_queue,
    retry_job,
)
from gnl_django.core.models import Process
from gnl_django.queue import pauses
from gnl_django.queue.models import Job, QueueState
from gnl_django.queue.store import store_for
from tests.conformance import support_claim as s
from tests.conformance.conftest import Declare
from tests.conformance.helpers import running
from tests.procs import Spawner
from tests.support import vendor, wait_until

Failpoint = Callable[[str, Callable[[], None]], None]


@pytest.fixture(autouse=True)
def _kind(declare: Declare) -> None:
    declare(s.KIND)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Stop the monotonic clock by which a copy's age is judged; the test moves `[0]`."""
    moment = [1_000.0]
    monkeypatch.setattr(pauses, "monotonic", lambda: moment[0])
    return moment


def elsewhere(queue: str, org: str = "") -> None:
    """Pause as another process does: this one hears nothing of it."""
    pauses.store.pause("default", queue, org, by="them", reason="")


def back(queue: str, org: str = "") -> None:
    """Resume as another process does."""
    assert pauses.store.resume("default", queue, org)


def about(seen: list[str], *, pauses_read: bool) -> list[str]:
    """Return the statements about the pauses, or the others."""
    return [text for text in seen if ("gnl_django_queuestate" in text) is pauses_read]


def passes_go_by(worker: Worker) -> None:
    """Wait until two whole passes have been made from now on."""
    polls = worker.metrics().polls
    wait_until(lambda: worker.metrics().polls > polls + 2)


# freshness


@pytest.mark.row("studio", "C18")
@pytest.mark.django_db(transaction=True)
def test_a_claim_a_second_after_the_pause_takes_nothing_and_an_earlier_one_reads_nothing(
    clock: list[float],
) -> None:
    s.add(["a"] * 3)
    with s.employed(concurrency=1) as worker:
        assert worker.run_once() == 1
        elsewhere("default")
        clock[0] += 0.9
        with s.statements() as seen:
            assert worker.run_once() == 1
        assert about(seen, pauses_read=True) == []
        clock[0] += 0.2
        with s.statements() as seen:
            assert worker.run_once() == 0
        assert len(about(seen, pauses_read=True)) == 1
        back("default")
        clock[0] += 1.0
        assert worker.run_once() == 1


@pytest.mark.row("studio", "C18")
@pytest.mark.django_db(transaction=True)
def test_each_claim_of_a_pass_asks_how_old_the_copy_is(
    clock: list[float], failpoint: Failpoint
) -> None:
    s.add([None])
    low = enqueue(s.KIND, queue="low")
    with s.employed(("default", "low"), concurrency=2) as worker:

        def late() -> None:
            # The claim of the first queue took a second, and meanwhile somebody paused the other.
            if clock[0] == 1_000.0:
                with s.threads() as go:
                    go(elsewhere, "low").result()
            clock[0] = 1_001.0

        failpoint("claim.committed", late)
        assert worker.run_once() == 1
    assert s.states()[low] == "ready"


@pytest.mark.row("studio", "C18")
@pytest.mark.django_db(transaction=True)
def test_a_held_job_finishes_though_its_queue_is_paused(declare: Declare) -> None:
    inside, go_on = Event(), Event()

    def work(payload: Any) -> None:
        inside.set()
        assert go_on.wait(s.DEADLINE)

    declare(s.KIND, work)
    (job_id,) = s.add([None])
    with s.employed(poll=0.02) as worker:
        worker.start()
        assert inside.wait(s.DEADLINE)
        assert pause_queue("default")
        passes_go_by(worker)  # one that had asked before the pause may still claim
        (second,) = s.add([None])
        go_on.set()
        wait_until(lambda: s.states()[job_id] == "succeeded")
        passes_go_by(worker)
    assert s.states() == {job_id: "succeeded", second: "ready"}


@pytest.mark.row("studio", "C28")
@pytest.mark.django_db(transaction=True)
def test_a_worker_that_starts_while_its_queue_is_paused_takes_nothing() -> None:
    job_id = enqueue(s.KIND)
    elsewhere("default")
    with s.employed(poll=0.02, max_poll=0.04) as worker:
        assert worker.run_until_idle() == 0
        worker.start()
        wait_until(lambda: worker.metrics().polls > 4)
        assert worker.idle()
    assert s.states() == {job_id: "ready"}


# what a pause costs and what it leaves alone


@pytest.mark.row("studio", "C19")
@pytest.mark.django_db(transaction=True)
def test_a_paused_queue_costs_no_claim_statement(clock: list[float]) -> None:
    s.add(["a", "b"])
    enqueue(s.KIND, queue="other")
    elsewhere("default")
    with s.employed(("default", "other")) as worker:
        assert worker.run_once() == 1  # of the other; questions asked once a connection are over
        clock[0] += 0.5
        elsewhere("other")
        clock[0] += 0.5
        with s.statements() as seen:
            assert worker.run_once() == 0
        # One to promote, one to reap, one to read the pauses.
        assert (len(seen), len(about(seen, pauses_read=True))) == (3, 1), seen
        clock[0] += 0.5
        with s.statements() as seen:
            assert worker.run_once() == 0
        assert (len(seen), len(about(seen, pauses_read=True))) == (2, 0), seen


@pytest.mark.row("studio", "C26")
@pytest.mark.django_db(transaction=True)
def test_all_else_goes_on_in_a_paused_queue() -> None:
    assert pause_queue("default")
    due, lost, dead = enqueue_many([NewJob(s.KIND, org="a") for _ in range(3)])
    at = s.now("default")
    Job.objects.filter(id=due).update(state="scheduled", run_at=at)
    running(lost, lease=timedelta(seconds=-1))
    Job.objects.filter(id=dead).update(state="dead", finished_at=at)
    assert retry_job(dead) == dead
    with s.employed() as worker:
        assert worker.run_once() == 0
        assert worker.metrics().reaped == 1
    assert set(s.states().values()) == {"ready"}
    assert Job.objects.get(id=lost).attempt == 1
    with pytest.raises(QueueDepthExceeded):
        enqueue(s.KIND, org="a", max_depth=3)
    assert enqueue(s.KIND, org="a", max_depth=4)


@pytest.mark.row("studio", "C27")
@pytest.mark.django_db(transaction=True)
def test_a_pass_that_cannot_read_the_pauses_claims_nothing_and_the_next_tries_again(
    declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, errors = Event(), []
    declare(s.KIND, lambda payload: ended.set())
    real, fail = pauses.store.paused, Event()

    def paused(using: str) -> list[tuple[str, str]]:
        if fail.is_set():
            raise OperationalError("no answer")
        return real(using)

    monkeypatch.setattr(pauses.store, "paused", paused)
    monkeypatch.setattr(pauses, "MAX_AGE", 0.0)
    options: dict[str, Any] = {"poll": 0.02, "max_poll": 0.02}
    with s.employed(**options, on_error=lambda error, job: errors.append((error, job))) as worker:
        fail.set()
        (job_id,) = s.add([None])
        worker.start()
        wait_until(lambda: len(errors) > 2)
        assert {(str(error), job) for error, job in errors} == {("no answer", None)}
        assert s.states() == {job_id: "ready"}
        fail.clear()
        assert ended.wait(s.DEADLINE)
        wait_until(lambda: s.states() == {job_id: "succeeded"})


@pytest.mark.row("studio", "C27")
@pytest.mark.django_db(transaction=True)
def test_outcomes_are_written_though_the_pauses_cannot_be_read(
    declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, go_on = Event(), Event()

    def work(payload: Any) -> None:
        inside.set()
        assert go_on.wait(s.DEADLINE)

    def paused(using: str) -> list[tuple[str, str]]:
        raise OperationalError("no answer")

    declare(s.KIND, work)
    (job_id,) = s.add([None])
    with s.employed(poll=0.02, max_poll=0.02) as worker:
        worker.start()
        assert inside.wait(s.DEADLINE)
        monkeypatch.setattr(pauses, "MAX_AGE", 0.0)
        monkeypatch.setattr(pauses.store, "paused", paused)
        go_on.set()
        wait_until(lambda: s.states() == {job_id: "succeeded"})


# lanes


@pytest.mark.row("studio", "C20")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("prepare", [False, True])
@pytest.mark.parametrize("n", [1, 2, 10])
def test_a_paused_lane_is_walked_over_and_the_others_keep_their_order(
    n: int, prepare: bool
) -> None:
    s.add([*("acme" for _ in range(30)), *("b", "c", "d") * 10])
    rings, store = s.rings(), store_for("default", prepare=prepare)
    starts: list[str] = []
    while len(starts) < 30:
        taken = rings.claim(store, "default", n, paused=("acme", "nobody"))
        assert taken.claimed.lanes == min(n, 3)
        starts += s.lanes(taken)
    assert starts == ["b", "c", "d"] * 10
    assert rings.claim(store, "default", n, paused=("acme",)).claimed.lanes == 0
    assert Job.objects.filter(state="ready").distinct().values_list("org").get() == ("acme",)


@pytest.mark.row("studio", "C20")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("cursor", "paused", "n", "wanted"),
    [
        ("a", ("b",), 2, ["c", "d"]),  # the worked example
        ("a", ("c", "d"), 2, ["b", "e"]),
        ("c", ("d", "e"), 3, ["a", "b", "c"]),  # the ring wraps behind paused lanes
        ("e", ("a", "b"), 2, ["c", "d"]),
        ("d", ("a", "c", "e"), 5, ["b", "d"]),
        ("zz", ("e",), 10, ["a", "b", "c", "d"]),
        ("", ("a", "b", "c", "d"), 1, ["e"]),
    ],
)
def test_the_ring_is_what_is_left_without_the_paused_lanes(
    cursor: str, paused: tuple[str, ...], n: int, wanted: list[str]
) -> None:
    s.add(["a", "b", "c", "d", "e"])
    claimed = s.store().claim(s.request(n, cursor=cursor, at_cursor=False, paused=paused))
    assert [row.org for row in claimed.rows] == wanted
    assert (claimed.lanes, claimed.last_lane) == (len(wanted), wanted[-1])


@pytest.mark.row("studio", "C20")
@pytest.mark.django_db(transaction=True)
def test_two_hundred_paused_lanes_in_front_are_walked_over() -> None:
    lanes = [f"a-{at:03}" for at in range(200)]
    s.add([*lanes, "b", "c"])
    taken = s.rings().claim(s.store(), "default", 3, paused=tuple(lanes))
    assert s.lanes(taken) == ["b", "c"]


@pytest.mark.row("studio", "C21")
@pytest.mark.django_db(transaction=True)
def test_with_all_lanes_paused_but_one_that_one_is_served_and_with_all_the_pass_is_empty() -> None:
    one, two, three = s.add(["a", "b", "c"])
    for org in ("a", "c"):
        assert pause_queue("default", org=org)
    with s.employed(concurrency=1) as worker:
        assert worker.run_until_idle() == 1
        assert s.states() == {one: "ready", two: "succeeded", three: "ready"}
        with s.statements() as seen:
            assert worker.run_once() == 0
        claims = [text for text in seen if "queue=" in text]
        # It is no contention: nothing is tried again. On MySQL each hop is a statement.
        assert len(claims) == {"postgresql": 1, "sqlite": 1, "mysql": 3}[vendor()], seen
        worker.start()
        wait_until(worker.idle)


@pytest.mark.row("studio", "C22")
@pytest.mark.django_db(transaction=True)
def test_a_pause_of_an_org_for_all_queues_holds_in_each() -> None:
    orgs = ("acme", "b")
    for queue in ("x", "y"):
        enqueue_many([NewJob(s.KIND, org=org, queue=queue) for org in orgs])
    assert pause_queue("*", org="acme")
    assert pause_queue("y", org="b")
    with s.employed(("x", "y")) as worker:
        assert worker.run_until_idle() == 1
        assert Job.objects.get(state="succeeded").queue == "x"
        assert resume_queue("y", org="b")
        assert worker.run_until_idle() == 1
        assert set(Job.objects.filter(state="ready").values_list("org", flat=True)) == {"acme"}
        assert resume_queue("*", org="acme")
        assert worker.run_until_idle() == 2


# the functions


@pytest.mark.row("studio", "C23")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("org", [None, "acme"])
def test_the_first_of_two_people_who_pause_is_remembered(org: str | None) -> None:
    assert pause_queue("mail", org=org, by="ana", reason="vendor down") is True
    before = QueueState.objects.values().get()
    assert pause_queue("mail", org=org, by="bob", reason="me too") is False
    assert QueueState.objects.values().get() == before
    assert (before["paused_by"], before["pause_reason"]) == ("ana", "vendor down")
    assert before["org"] == (org or "")
    with s.later(1):  # SQLite's clock knows milliseconds only
        assert resume_queue("mail", org=org, by="bob") is True
    assert resume_queue("mail", org=org) is False
    after = QueueState.objects.get()
    assert (after.paused_at, after.paused_by, after.pause_reason) == (None, "", "")
    assert after.changed_at > before["changed_at"]


@pytest.mark.row("studio", "C23")
@pytest.mark.django_db(transaction=True)
def test_of_two_who_pause_at_once_one_has_done_it() -> None:
    for at in range(10):
        with s.threads() as go:
            calls = [
                go(lambda by, at=at: pause_queue(f"q{at}", org="a", by=by), by)
                for by in ("ana", "bob")
            ]
            done = [call.result() for call in calls]
        assert sorted(done) == [False, True]
        row = QueueState.objects.get(queue=f"q{at}")
        assert row.paused_by == ("ana" if done[0] else "bob")


@pytest.mark.row("studio", "C24")
@pytest.mark.django_db(transaction=True)
def test_resume_wakes_the_workers_of_this_process() -> None:
    job_id = enqueue(s.KIND)
    assert pause_queue("default")
    with s.employed(poll=60, max_poll=60) as worker:
        worker.start()
        wait_until(lambda: worker.metrics().polls > 0)
        assert resume_queue("default")
        wait_until(lambda: s.states() == {job_id: "succeeded"})


@pytest.mark.row("studio", "C24")
@pytest.mark.django_db(transaction=True)
@pytest.mark.postgres("only PostgreSQL has NOTIFY")
def test_with_notify_a_resume_elsewhere_is_seen_at_once(spawn: Spawner) -> None:
    job_id = enqueue("tests.quick", 5)
    assert pause_queue("default")
    worker = spawn(["gnl_worker", "--ttl", "180", "--poll", "60", "--max-poll", "60"])
    with connection.cursor() as cursor:

        def listens() -> bool:
            cursor.execute("SELECT 1 FROM pg_stat_activity WHERE query LIKE %s", ['LISTEN "gnl_c%'])
            return cursor.fetchone() is not None

        wait_until(lambda: listens() and Process.objects.exists(), 30, describe=worker.output)
    assert s.states() == {job_id: "ready"}
    assert resume_queue("default")
    wait_until(lambda: s.states() == {job_id: "succeeded"}, describe=worker.output)


@pytest.mark.row("studio", "C24")
@pytest.mark.django_db(transaction=True)
@pytest.mark.postgres("only PostgreSQL has NOTIFY")
def test_without_notify_nothing_is_sent(settings: Any) -> None:
    settings.GNL = {"NOTIFY": False}
    with s.statements() as seen:
        assert pause_queue("default")
    assert not [text for text in seen if "pg_notify" in text]


@pytest.mark.row("studio", "C24")
@pytest.mark.django_db(transaction=True)
def test_a_resume_elsewhere_is_seen_at_the_next_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses, "MAX_AGE", 0.05)
    job_id = enqueue(s.KIND)
    elsewhere("default")
    with s.employed(poll=0.02, max_poll=0.1) as worker:
        worker.start()
        wait_until(lambda: worker.metrics().polls > 2)
        back("default")
        wait_until(lambda: s.states() == {job_id: "succeeded"})


@pytest.mark.row("studio", "C25")
@pytest.mark.django_db(transaction=True)
def test_the_201st_lane_of_a_queue_is_refused_and_all_queues_count_in_each() -> None:
    with transaction.atomic():
        for at in range(150):
            assert pause_queue("mail", org=f"org-{at}")
        for at in range(100, 200):  # half of them are lanes of `mail` already
            assert pause_queue("*", org=f"org-{at}")
    for queue in ("mail", "*"):
        with pytest.raises(ValueError, match="200 lanes"):
            pause_queue(queue, org="one too many")
    assert not QueueState.objects.filter(org="one too many").exists()
    assert pause_queue("mail", org="org-7") is False
    assert pause_queue("mail", org="org-170") is True  # paused for all queues: no further lane
    assert pause_queue("other", org="one too many") is True
    assert pause_queue("mail") is True
    assert resume_queue("mail", org="org-7") is True
    assert pause_queue("mail", org="one too many") is True


@pytest.mark.row("studio", "C25")
@pytest.mark.django_db(transaction=True)
def test_callers_at_once_do_not_exceed_the_limit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses.store, "LANES_MAX", 3)
    pause_queue("mail", org="first")

    def attempt(at: int) -> bool:
        try:
            return pause_queue("mail", org=f"org-{at}")
        except ValueError:
            return False

    with s.threads() as go:
        calls = [go(attempt, at) for at in range(8)]
        assert sum(call.result() for call in calls) == 2
    assert QueueState.objects.filter(paused_at__isnull=False).count() == 3


@pytest.mark.row("studio", "C25")
@pytest.mark.django_db
@pytest.mark.parametrize("act", [pause_queue, resume_queue])
def test_what_is_no_queue_or_lane_is_refused(act: Callable[..., bool]) -> None:
    for queue, org in [("*", None), ("*", ""), ("a b", None), ("", None), ("q" * 65, None)]:
        with pytest.raises(ValueError, match="queue"):
            act(queue, org=org)
    with pytest.raises(ValueError, match="org"):
        act("mail", org=" a")
    with pytest.raises(TypeError):
        act("mail", org=0)
    with pytest.raises(TypeError):
        act(None)
    assert not QueueState.objects.exists()


@pytest.mark.row("studio", "C25")
@pytest.mark.django_db
def test_an_empty_org_means_the_whole_queue() -> None:
    assert pause_queue("mail", org="") is True
    assert QueueState.objects.get().org == ""
    assert pause_queue("mail") is False


@pytest.mark.django_db(transaction=True)
def test_a_pause_that_is_rolled_back_never_was(clock: list[float]) -> None:
    s.add([None])
    with s.employed() as worker:
        with transaction.atomic():
            assert pause_queue("default")
            transaction.set_rollback(True)
        assert worker.run_once() == 1


@pytest.mark.django_db
def test_inside_a_tests_transaction_a_pause_holds_at_once() -> None:
    s.add(["a", "a", "b"])
    with s.employed(concurrency=1) as worker:
        assert worker.run_once() == 1
        assert pause_queue("default", org="a")
        assert worker.run_until_idle() == 1
        assert connection.in_atomic_block
        assert resume_queue("default", org="a")
        assert worker.run_until_idle() == 1


@pytest.mark.django_db(transaction=True)
def test_a_worker_enters_its_queues_and_leaves_known_ones_as_they_are() -> None:
    pause_queue("low", by="ana")
    with s.employed(("high", "low"), poll=0.02) as worker:
        worker.start()
        wait_until(lambda: worker.metrics().polls > 0)
    rows = QueueState.objects.order_by("queue").values_list("queue", "org", "paused_by")
    assert list(rows) == [("high", "", ""), ("low", "", "ana")]


@pytest.mark.django_db(transaction=True)
def test_long_and_broken_texts_are_cut_to_what_the_columns_hold() -> None:
    assert pause_queue("mail", by="a" * 200, reason="é\x00\ud800" + "x" * 300)
    row = QueueState.objects.get()
    assert (len(row.paused_by), len(row.pause_reason)) == (150, 200)
    assert row.pause_reason.startswith("é")
