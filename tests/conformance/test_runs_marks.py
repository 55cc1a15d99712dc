"""Marks: `claim` and `frozen` note something once for all under a key (D65-D67)."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction

from gnl_django import InvalidPayload, JobContext, claim, frozen, run_durable
from gnl_django.models import Mark
from tests.conformance.conftest import Aside, Declare, MakeWorker
from tests.conformance.helpers import DEADLINE, job_of
from tests.conformance.support_runs import RUN, Body, async_executor, executor

pytestmark = pytest.mark.django_db(transaction=True)

MANY = 20


def at_once(aside: Aside, work: Callable[[int], Any]) -> list[Any]:
    """Call `work` in many threads that begin together."""
    ready = threading.Barrier(MANY)

    def one(n: int) -> Any:
        ready.wait(DEADLINE)
        return work(n)

    calls = [aside(lambda n=n: one(n)) for n in range(MANY)]
    return [call.result(30) for call in calls]


@pytest.mark.row("runs", "D65")
def test_the_first_claim_of_a_key_is_the_only_one() -> None:
    assert [claim("k") for _ in range(3)] == [True, False, False]
    assert [claim("K"), claim("k ."), claim("k", 7)] == [True, True, False]
    assert Mark.objects.get(key="k").value is True


@pytest.mark.row("runs", "D65")
def test_of_twenty_threads_one_has_the_claim(aside: Aside) -> None:
    found = at_once(aside, lambda n: claim("k", n))
    assert sorted(found) == [False] * (MANY - 1) + [True]
    assert Mark.objects.get().value == found.index(True)


@pytest.mark.row("runs", "D65")
def test_a_claim_that_was_rolled_back_is_free_again() -> None:
    with transaction.atomic():
        assert claim("k") is True
        assert claim("k") is False
        transaction.set_rollback(True)
    assert Mark.objects.count() == 0
    with transaction.atomic():
        assert claim("k") is True
    assert claim("k") is False


@pytest.mark.row("runs", "D65")
@pytest.mark.postgres("SQLite has one writer: the second one waits for the first's transaction")
@pytest.mark.mysql
@pytest.mark.parametrize("commits", [True, False])
def test_who_claims_meanwhile_waits_for_the_other_transaction(aside: Aside, commits: bool) -> None:
    with transaction.atomic():
        assert claim("k") is True
        waiting = aside(lambda: claim("k"))
        assert not waiting.ends_within(0.1)
        transaction.set_rollback(not commits)
    assert waiting.result() is not commits


@pytest.mark.row("runs", "D66")
def test_of_twenty_threads_all_get_the_one_frozen_value(aside: Aside) -> None:
    computed: list[int] = []

    def work(n: int) -> Any:
        return frozen("k", lambda: computed.append(n) or {"n": (n,)})

    found = at_once(aside, work)
    assert len({value["n"][0] for value in found}) == 1
    assert found[0]["n"][0] in computed
    assert found == [found[0]] * MANY
    assert Mark.objects.get().value == {"v": found[0]}


@pytest.mark.row("runs", "D66")
def test_a_value_is_computed_once_and_goes_through_json() -> None:
    compute = Body((1, 2))
    assert [frozen("k", compute) for _ in range(3)] == [[1, 2]] * 3
    assert compute.count == 1


@pytest.mark.row("runs", "D66")
@pytest.mark.parametrize("value", [None, False, 0, "", [], {}, {"v": None}], ids=repr)
def test_a_value_that_looks_like_none_at_all_is_kept(value: Any) -> None:
    assert frozen("k", Body(value)) == value
    assert frozen("k", Body("another")) == value


@pytest.mark.row("runs", "D66")
def test_nothing_is_stored_when_compute_raises_or_gives_no_json() -> None:
    with pytest.raises(LookupError):
        frozen("k", Body(LookupError()))
    with pytest.raises(InvalidPayload) as caught:
        frozen("k", Body({1}))
    assert caught.value.kind == "frozen:k"
    assert Mark.objects.count() == 0
    assert frozen("k", Body(1)) == 1


@pytest.mark.row("runs", "D66")
def test_the_loser_of_a_race_gives_up_its_own_value() -> None:
    assert frozen("k", lambda: frozen("k", Body("inner")) and "outer") == "inner"


@pytest.mark.row("runs", "D65", "D66")
def test_a_key_is_claimed_or_frozen_but_not_both() -> None:
    frozen("frozen", Body(1))
    assert claim("frozen") is False
    for n, value in enumerate((True, 7, None, {"a": 1}, {"v": 1, "w": 2})):
        assert claim(f"claimed {n}", value)
        with pytest.raises(ValueError, match="is claimed"):
            frozen(f"claimed {n}", Body(2))


@pytest.mark.row("runs", "D66")
@pytest.mark.mysql("the others refuse such a transaction, or do not have it")
def test_a_value_frozen_after_the_callers_snapshot_is_returned(aside: Aside) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    with transaction.atomic():
        assert Mark.objects.count() == 0
        assert aside(lambda: frozen("k", Body("theirs"))).result() == "theirs"
        assert frozen("k", Body("ours")) == "theirs"


@pytest.mark.row("runs", "D67")
def test_two_runs_claim_and_freeze_the_same_key_apart() -> None:
    def work(run: Any, n: int) -> list[Any]:
        return [run.claim("k"), run.claim("k"), run.frozen("f", Body(n)), run.frozen("f", Body(9))]

    for n, run_id in enumerate(("a", "a:k", "b")):
        assert run_durable(run_id, work, n) == [True, False, n, n]
    assert claim("k") is True
    assert set(Mark.objects.values_list("key", flat=True)) == {
        *("a:k", "a:f", "a:k:k", "a:k:f", "b:k", "b:f", "k"),
    }


@pytest.mark.row("runs", "D67")
def test_a_jobs_marks_last_over_its_attempts(declare: Declare, make_worker: MakeWorker) -> None:
    def handle(payload: Any, ctx: JobContext) -> Any:
        found = ctx.claim("mail", "x"), ctx.frozen("at", Body(ctx.attempt))
        if ctx.attempt == 1:
            raise OSError
        return found

    kind = declare("t.marks", handle, retry_delay=0)
    first, second = kind.enqueue(), kind.enqueue()
    make_worker(concurrency=1).run_until_idle()
    assert [job_of(job_id).result for job_id in (first, second)] == [[False, 1]] * 2
    assert set(Mark.objects.values_list("key", flat=True)) == {
        f"job:{job_id}:{key}" for job_id in (first, second) for key in ("mail", "at")
    }


@pytest.mark.row("runs", "D67")
def test_coroutines_claim_and_freeze_alike() -> None:
    async def program() -> list[Any]:
        run = await async_executor()

        async def compute() -> int:
            return 5

        return [
            await run.claim("k"),
            await run.claim("k"),
            await run.frozen("f", compute),
            await run.frozen("f", Body(6)),
            await run.frozen("g", Body(7)),
        ]

    assert async_to_sync(program)() == [True, False, 5, 5, 7]


KEYS = ["", " k", "k ", "k" * 256, "k\n", "k\0", "\ud800"]


@pytest.mark.row("runs", "D65", "D66")
@pytest.mark.parametrize("key", KEYS, ids=ascii)
def test_a_key_that_nobody_can_type_is_refused_before_anything_is_computed(key: str) -> None:
    compute, run = Body(), executor()
    for call in (claim, run.claim):
        with pytest.raises(ValueError, match="key"):
            call(key)
    for call in (frozen, run.frozen):
        with pytest.raises(ValueError, match="key"):
            call(key, compute)  # type: ignore[arg-type]
    assert (compute.count, Mark.objects.count()) == (0, 0)


@pytest.mark.row("runs", "D65")
def test_a_key_is_text_and_fits_with_its_runs_id() -> None:
    for wrong in (None, 7, b"k"):
        with pytest.raises(TypeError, match="key must be text"):
            claim(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="key must be text"):
            executor().frozen(wrong, Body())  # type: ignore[arg-type]
    assert claim("😀" * 255) is True
    run = executor("r" * 250)
    assert run.claim("four") is True
    with pytest.raises(ValueError, match="key"):
        run.claim("fives")


@pytest.mark.row("runs", "D65")
def test_what_is_noted_with_a_claim_is_json() -> None:
    with pytest.raises(InvalidPayload) as caught:
        claim("k", {"a": {1}})
    assert (caught.value.kind, caught.value.issues[0].path) == ("claim:k", "/a")
    assert claim("k", "x" * 1_048_574) is True


def test_a_run_in_which_something_is_frozen_is_entered() -> None:
    assert run_durable(RUN, lambda run: run.frozen("k", Body(1))) == 1
