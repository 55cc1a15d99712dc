"""Journal and replay: a recorded step is not run again, whatever happened since (D01-D15)."""

import asyncio
import random
from collections import Counter
from contextlib import suppress
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection

from gnl_django import (
    InvalidPayload,
    NonDeterministicRun,
    RunContext,
    get_run,
    list_steps,
    run_durable,
)
from gnl_django.core import payloads
from gnl_django.models import Run, Step
from gnl_django.runs.journal.base import PAGE
from gnl_django.runs.values import VALUE_MAX_BYTES
from tests.conformance.conftest import Declare, FailPoint, MakeWorker
from tests.conformance.helpers import job_of
from tests.conformance.support_runs import (
    RUN,
    Body,
    Crash,
    async_executor,
    crash_at,
    executor,
    journal_statements,
    keys_of,
    make_run,
    run_columns,
    step_row,
    steps_of,
)
from tests.support import vendor

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.row("runs", "D01")
def test_a_run_that_was_interrupted_does_only_what_is_missing() -> None:
    bodies = [Body("a"), Body({"b": [1]}), Body(None)]

    def work(run: RunContext) -> list[Any]:
        first = [run.step(f"s{at}", body, at) for at, body in enumerate(bodies[:2])]
        if run.attempt == 1:
            raise ConnectionError("the network")
        return [*first, run.step("s2", bodies[2], 2)]

    with pytest.raises(ConnectionError, match="the network"):
        run_durable(RUN, work)
    assert run_durable(RUN, work) == ["a", {"b": [1]}, None]
    assert [body.calls for body in bodies] == [[(0,)], [(1,)], [(2,)]]
    assert steps_of() == [("s0", "done", "a"), ("s1", "done", {"b": [1]}), ("s2", "done", None)]


def fill(count: int, run_id: str = RUN) -> Run:
    """Write a run with `count` recorded steps `s`, `s#2`, .. by one statement."""
    run = make_run(run_id)
    digits = " UNION ALL ".join(f"SELECT {digit} AS d" for digit in range(10))
    tables = ", ".join(f"({digits}) d{at}" for at in range(5))
    number = " + ".join(f"d{at}.d * {10**at}" for at in range(5))
    text = "CONCAT('s#', n)" if vendor() == "mysql" else "'s#' || n"
    key = connection.ops.quote_name("key")
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO gnl_django_step (run_id, {key}, ordinal, mode, state, output, attempt, "
            "started_at, finished_at, error) "
            f"SELECT %s, CASE WHEN n = 1 THEN 's' ELSE {text} END, n, 'plain', 'done', "
            "'7', 1, r.created_at, r.created_at, '' "
            f"FROM (SELECT {number} + 1 AS n FROM {tables}) numbers, gnl_django_run r "
            "WHERE r.id = %s AND n <= %s ORDER BY n",
            [run.pk, run.pk, count],
        )
    return run


@pytest.mark.row("runs", "D02")
def test_a_thousand_steps_are_replayed_with_three_queries() -> None:
    fill(PAGE)
    body = Body()
    with journal_statements() as seen:
        run = executor()
        assert [run.step("s", body) for _ in range(PAGE)] == [7] * PAGE
    assert body.count == 0
    reads = [text for text in seen if "FROM gnl_django_step" in text]
    assert len(reads) == 1
    if vendor() == "postgresql":
        assert len(seen) <= 3


@pytest.mark.row("runs", "D15")
@pytest.mark.parametrize(
    ("count", "strict"),
    [
        pytest.param(5_000, True, id="5,000"),
        pytest.param(50_000, True, id="50,000", marks=pytest.mark.slow),
        pytest.param(5_000, False, id="5,000 by key"),
    ],
)
def test_many_thousand_steps_are_replayed_in_pages(count: int, strict: bool) -> None:
    fill(count)
    Run.objects.update(strict=strict)
    body, most = Body("new"), 0
    with journal_statements() as seen:
        run = executor(strict=strict)
        for _ in range(count):
            assert run.step("s", body) == 7
            most = max(most, len(run.entry._by_ordinal))
    assert body.count == 0
    assert sum("FROM gnl_django_step" in text for text in seen) == count // PAGE
    if strict:
        assert most == PAGE
    assert run.step("s", body) == "new"
    assert keys_of()[-1] == f"s#{count + 1}"


VALUES: list[Any] = [
    (1, (2, "x")),
    str(Decimal("1.10")),
    None,
    {"b": [1, {"c": (None, True)}], "a": 1.5},
    "",
    [],
    "ä☃😀\u2028",
    2**63 - 1,
    1e300,
    -0.0,
    {"": {"": ""}},
]


@pytest.mark.row("runs", "D03")
@pytest.mark.parametrize("mode", ["plain", "side_effect", "atomic"])
def test_the_first_value_and_the_replayed_one_are_the_same(mode: str) -> None:
    how = {} if mode == "plain" else {mode: True}
    run = executor()
    first = [run.step("s", Body(value), **how) for value in VALUES]
    again = executor()
    replayed = [again.step("s", Body("never"), **how) for _ in VALUES]
    rows = Step.objects.extra(select={"text": "output"}).order_by("ordinal")
    stored = list(rows.values_list("text", flat=True))
    assert list(map(type, first)) == list(map(type, replayed))
    assert [payloads.dump(value) for value in first] == stored
    assert [payloads.dump(value) for value in replayed] == stored
    assert [payloads.dump(value) for value in VALUES] == stored
    assert {(step.mode, step.state) for step in Step.objects.all()} == {(mode, "done")}


UNFIT: list[tuple[Any, str]] = [
    ({"a": {1, 2}}, "/a"),
    ([0.0, float("nan")], "/1"),
    ("x" * (VALUE_MAX_BYTES - 1), "/"),
    ({"k": "a\0b"}, "/k"),
    ("\ud800", "/"),
    ({1: 2}, "/1"),
    (2**63, "/"),
    (b"x", "/"),
    (Decimal("1.1"), "/"),
]


@pytest.mark.row("runs", "D04")
@pytest.mark.parametrize("mode", ["plain", "side_effect", "atomic"])
def test_an_output_that_is_not_json_is_refused_with_its_path(mode: str) -> None:
    how = {} if mode == "plain" else {mode: True}
    for n, (value, path) in enumerate(UNFIT):
        run_id = f"r{n}"
        with pytest.raises(InvalidPayload) as caught:
            executor(run_id).step("s", Body(value), **how)
        assert caught.value.kind == "step:s"
        assert caught.value.issues[0].path == path
        found = steps_of(run_id)
        assert found == ([("s", "failed", None)] if mode == "side_effect" else [])
        if mode != "side_effect":
            assert executor(run_id).step("s", Body("good"), **how) == "good"


@pytest.mark.row("runs", "D04")
def test_an_output_of_exactly_one_mebibyte_is_kept() -> None:
    value = "x" * (VALUE_MAX_BYTES - 2)
    assert executor().step("s", Body(value)) == value
    assert executor().step("s", Body()) == value


@pytest.mark.row("runs", "D05")
def test_a_name_used_again_is_another_step() -> None:
    for _ in range(2):
        run = executor()
        assert [run.step("name", Body(n)) for n in range(3)] == [0, 1, 2]
    assert steps_of() == [("name", "done", 0), ("name#2", "done", 1), ("name#3", "done", 2)]


@pytest.mark.row("runs", "D06")
@pytest.mark.parametrize(
    "name",
    ["", "a#2", "#", "x" * 201, " a", "a ", "a\n", "\t", "a\0b", "\ud800", "a\u00a0", "\u200b"],
    ids=repr,
)
def test_a_name_that_nobody_can_type_is_refused_before_the_body(name: str) -> None:
    body = Body()
    run = executor()
    with pytest.raises(ValueError, match="step name"):
        run.step(name, body)
    assert (body.count, steps_of()) == (0, [])
    assert run.step("good", Body(1)) == 1
    assert step_row("good").ordinal == 1


@pytest.mark.row("runs", "D06")
@pytest.mark.parametrize("name", ["x" * 200, "😀" * 200, "a: b/c 'd' %s {e}", "A", "a"])
def test_a_name_of_200_printable_characters_is_kept_exactly(name: str) -> None:
    run = executor()
    assert [run.step(name, Body(n)) for n in (1, 2)] == [1, 2]
    again = executor()
    assert [again.step(name, Body()) for _ in range(2)] == [1, 2]
    assert keys_of() == [name, f"{name}#2"]


@pytest.mark.row("runs", "D07")
def test_another_order_of_steps_is_an_error_and_nothing_is_done() -> None:
    run = executor()
    run.step("fetch", Body(1))
    run.step("store", Body(2))
    before = steps_of()
    body = Body()
    again = executor()
    with pytest.raises(NonDeterministicRun) as caught:
        again.step("login", body)
    error = caught.value
    assert (error.run_id, error.ordinal) == (RUN, 1)
    assert (error.recorded, error.called) == ("fetch", "login")
    assert (body.count, steps_of()) == (0, before)
    with pytest.raises(NonDeterministicRun):
        executor().step("store", body)
    for how in ({"side_effect": True}, {"atomic": True}):
        with pytest.raises(NonDeterministicRun):
            executor().step("login", body, **how)
    assert (body.count, steps_of()) == (0, before)


@pytest.mark.row("runs", "D07")
def test_a_job_that_was_deployed_with_another_order_says_so(
    declare: Declare, make_worker: MakeWorker
) -> None:
    def old(payload: Any, ctx: Any) -> None:
        ctx.step("fetch", Body(1))
        raise ValueError

    def new(payload: Any, ctx: Any) -> None:
        ctx.step("login", Body(1))
        ctx.step("fetch", Body(1))

    kind = declare("t.deploy", old, retry_delay=0, max_attempts=2)
    job_id = kind.enqueue()
    worker = make_worker(concurrency=1)
    assert worker.run_once() == 1
    declare("t.deploy", new, retry_delay=0, max_attempts=2)
    assert worker.run_once() == 1
    assert job_of(job_id).error_class == "gnl_django.errors.NonDeterministicRun"
    assert keys_of(f"job:{job_id}") == ["fetch"]


@pytest.mark.row("runs", "D08")
def test_a_run_that_is_not_strict_finds_its_steps_by_their_keys() -> None:
    def first(run: RunContext) -> None:
        for n in range(3):
            run.step("fetch", Body(n))
        raise ConnectionError

    login, fetch = Body("in"), Body("again")

    def second(run: RunContext) -> list[Any]:
        return [run.step("login", login), *(run.step("fetch", fetch) for _ in range(3))]

    with pytest.raises(ConnectionError):
        run_durable(RUN, first, strict=False)
    assert run_durable(RUN, second) == ["in", 0, 1, 2]  # strictness was set by the first entry
    assert (login.count, fetch.count) == (1, 0)
    ordinals = list(Step.objects.order_by("ordinal", "id").values_list("ordinal", "key"))
    assert ordinals == [(1, "fetch"), (1, "login"), (2, "fetch#2"), (3, "fetch#3")]


@pytest.mark.row("runs", "D08")
def test_ordinals_that_repeat_at_the_border_of_a_page_hide_no_step() -> None:
    run = make_run(strict=False)
    at = run.created_at
    Step.objects.bulk_create(
        Step(
            run=run, key=key, ordinal=ordinal, mode="plain", state="done", output=key, attempt=1,
            started_at=at, finished_at=at,
        )
        for ordinal in range(1, 700)
        for key in (f"z{ordinal}", f"a{ordinal}", f"m{ordinal}")
    )  # fmt: skip
    again, body = executor(strict=False), Body("new")
    wanted = [f"{letter}{n}" for n in range(699, 0, -1) for letter in "maz"]
    assert [again.step(name, body) for name in wanted] == wanted
    assert again.step("new", body) == "new"
    assert body.count == 1


@pytest.mark.row("runs", "D09")
def test_steps_may_be_appended_and_left_out_at_the_end() -> None:
    run = executor()
    for name in ("a", "b", "c"):
        run.step(name, Body(name))
    longer = executor()
    assert [longer.step(n, Body("new")) for n in ("a", "b", "c", "d")] == ["a", "b", "c", "new"]
    assert run_durable(RUN, lambda run: run.step("a", Body("new"))) == "a"
    assert get_run(RUN).steps == 4  # type: ignore[union-attr]


@pytest.mark.row("runs", "D10")
@pytest.mark.parametrize("order", [[4, 3, 2, 1, 0], [2, 0, 4, 1, 3]], ids=str)
def test_tasks_keep_their_keys_whatever_order_they_end_in(order: list[int]) -> None:
    calls: Counter[int] = Counter()

    async def program(crash: bool) -> list[int]:
        run = await async_executor()
        turns = [asyncio.Event() for _ in order]
        turns[order[0]].set()

        async def body(n: int) -> int:
            calls[n] += 1
            await asyncio.wait_for(turns[n].wait(), 10)
            place = order.index(n)
            if place + 1 < len(order):
                turns[order[place + 1]].set()
            if crash and place == 3:
                raise ConnectionError(n)
            return n * n

        found = await asyncio.gather(
            *(run.step("s", body, n) for n in range(5)), return_exceptions=True
        )
        return [value for value in found if not isinstance(value, BaseException)]

    assert len(async_to_sync(program)(True)) == 4
    lost = order[3]
    keys = {n: "s" if n == 0 else f"s#{n + 1}" for n in range(5)}
    assert set(keys_of()) == {key for n, key in keys.items() if n != lost}
    order = [lost]  # only this one is left to run

    async def resume() -> list[int]:
        run = await async_executor()

        async def body(n: int) -> int:
            calls[n] += 1
            return n * n

        return list(await asyncio.gather(*(run.step("s", body, n) for n in range(5))))

    assert async_to_sync(resume)() == [0, 1, 4, 9, 16]
    assert calls == {n: 2 if n == lost else 1 for n in range(5)}


@pytest.mark.row("runs", "D11")
def test_a_body_whose_error_was_caught_runs_again_when_resumed() -> None:
    flaky, steady = Body(ValueError("no")), Body("yes")

    def work(run: RunContext) -> Any:
        run.step("first", steady)
        with suppress(ValueError):
            run.step("flaky", flaky)
        run.step("last", steady)
        if run.attempt == 1:
            raise ConnectionError
        return "end"

    with pytest.raises(ConnectionError):
        run_durable(RUN, work)
    assert steps_of() == [("first", "done", "yes"), ("last", "done", "yes")]
    assert step_row("last").ordinal == 3
    assert run_durable(RUN, work) == "end"
    assert (flaky.count, steady.count) == (2, 2)


@pytest.mark.row("runs", "D11", "D49")
def test_a_step_is_one_write_and_an_entry_one_statement(
    declare: Declare, make_worker: MakeWorker
) -> None:
    counts: list[int] = []

    def handle(payload: Any, ctx: Any) -> None:
        for name in ("first", "second", "third"):
            with journal_statements() as seen:
                ctx.step(name, Body())
            counts.append(len(seen))

    job_id = declare("t.count", handle).enqueue()
    make_worker(concurrency=1).run_once()
    assert job_of(job_id).state == "succeeded"
    if vendor() == "postgresql":
        assert counts == [2, 1, 1]
    else:  # the fence, then the row; entering: fence, row, lock, change, and what it is now
        assert counts == [7, 2, 2]


@pytest.mark.row("runs", "D12")
@pytest.mark.parametrize("mode", ["plain", "side_effect", "atomic"])
def test_a_step_inside_a_step_is_refused(mode: str) -> None:
    run, inner = executor(), Body()
    how = {} if mode == "plain" else {mode: True}
    with pytest.raises(RuntimeError, match="'inner' is called inside the body of 'outer'"):
        run.step("outer", lambda: run.step("inner", inner), **how)
    assert inner.count == 0
    assert "inner" not in keys_of()
    assert run.step("after", Body(1)) == 1


@pytest.mark.row("runs", "D12")
def test_a_step_inside_a_coroutine_step_is_refused_but_not_one_beside_it() -> None:
    async def program() -> list[Any]:
        run = await async_executor()
        begun = asyncio.Event()

        async def outer() -> str:
            begun.set()
            with pytest.raises(RuntimeError, match="inside the body"):
                await run.step("inner", Body())
            return "outer"

        async def beside() -> Any:
            await begun.wait()
            return await run.step("beside", Body("beside"))

        return list(await asyncio.gather(run.step("outer", outer), beside()))

    assert async_to_sync(program)() == ["outer", "beside"]
    assert keys_of() == ["outer", "beside"]


@pytest.mark.row("runs", "D13", "D88")
@pytest.mark.parametrize("quicker", ["plain", "side_effect", "atomic"])
def test_of_two_executors_one_records_and_both_have_its_output(quicker: str) -> None:
    how = {} if quicker == "plain" else {quicker: True}
    slow = executor()

    def body() -> str:
        assert executor().step("s", Body("quick"), **how) == "quick"
        return "slow"

    assert slow.step("s", body) == "quick"
    assert steps_of() == [("s", "done", "quick")]
    assert step_row("s").mode == quicker


POINTS = ("step.begin", "step.effect_done", "step.journaled", "step.committed")


@pytest.mark.row("runs", "D14", "D88")
@pytest.mark.parametrize("mode", ["plain", "atomic"])
def test_a_step_starts_once_more_for_each_crash_inside_it_and_never_after_its_commit(
    failpoint: FailPoint, mode: str
) -> None:
    dice = random.Random(f"history {mode}")  # noqa: S311 - the same every time
    names = ("a", "b", "c", "d")
    how = {} if mode == "plain" else {mode: True}
    for round_ in range(12):
        run_id = f"history {round_}"
        history: list[tuple[str, str]] = []
        crashes = [(dice.choice(POINTS), dice.randrange(1, 4)) for _ in range(3)]
        for point, nth in [*crashes, ("step.begin", 99)]:
            crash_at(failpoint, point, nth=nth)
            run = executor(run_id)
            try:
                for name in names:
                    run.step(name, partial(history.append, ("start", name)), **how)
                    history.append(("committed", name))
            except Crash:
                history.append(("crash", point))
            failpoint(point, lambda: None)
            done = set(keys_of(run_id))
            for name in names:
                if name in done and ("done", name) not in history:
                    history.append(("done", name))
        for name in names:
            starts = [at for at, event in enumerate(history) if event == ("start", name)]
            done_at = history.index(("done", name))
            inside = sum(
                1
                for at in starts
                if history[at + 1][0] == "crash" and history[at + 1][1] != "step.committed"
            )
            assert starts, history
            assert len(starts) <= 1 + inside, history
            assert max(starts) < done_at, history
        assert [step.key for step in list_steps(run_id)] == list(names)


def test_a_refused_step_has_taken_no_place(failpoint: FailPoint) -> None:
    run = executor()
    with pytest.raises(TypeError):
        run.step("a", "no function")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        run.step("a", Body(), side_effect=True, atomic=True)
    run.step("a", Body())
    assert (step_row("a").ordinal, keys_of()) == (1, ["a"])


def test_an_entry_that_reads_nothing_new_changes_nothing_but_its_count() -> None:
    executor().step("a", Body(1))
    before = run_columns()
    assert executor().step("a", Body(2)) == 1
    after = run_columns()
    assert after.pop("entries") == before.pop("entries") + 1
    after.pop("updated_at"), before.pop("updated_at")
    assert after == before
