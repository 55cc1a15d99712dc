"""Smoke."""

import asyncio

import pytest

from gnl_django import (
    Worker,
    cancel_run,
    claim,
    current_step,
    enqueue,
    frozen,
    get_run,
    job,
    list_steps,
    resolve_step,
    retry_job,
    run_agent,
    run_durable,
    run_handler_once,
)
from gnl_django.models import Job
from gnl_django.queue.options import kinds


@pytest.mark.django_db(transaction=True)
def test_standalone():
    calls = []

    def fn(run):
        a = run.step("a", lambda: calls.append("a") or (1, 2))
        b = run.step("b", lambda: calls.append(current_step()) or "x", side_effect=True)
        c = run.step("c", lambda: calls.append("c") or None, atomic=True)
        if len(calls) == 3:
            raise RuntimeError("crash")
        return {"a": a, "b": b, "c": c, "attempt": run.attempt}

    with pytest.raises(RuntimeError):
        run_durable("r1", fn, input={"n": 1})
    assert get_run("r1").state == "failed"
    calls.append("extra")
    got = run_durable("r1", fn)
    assert got == {"a": [1, 2], "b": "x", "c": None, "attempt": 2}
    assert run_durable("r1", fn) == got
    info = get_run("r1")
    assert (
        info.state == "completed"
        and info.result == got
        and info.steps == 3
        and info.input == {"n": 1}
    )
    assert [s.key for s in list_steps("r1")] == ["a", "b", "c"]
    assert not cancel_run("r1")
    assert claim("k") and not claim("k")
    assert frozen("f", lambda: None) is None
    assert frozen("f", lambda: 5) is None


@pytest.mark.django_db(transaction=True)
def test_job():
    seen = []

    @job("smoke.run", retry_delay=0)
    def handler(payload, ctx):
        seen.append(ctx.step("one", lambda: seen.append("body") or 7))
        ctx.step("two", lambda: 1, side_effect=True)
        if ctx.attempt == 1:
            raise ValueError
        return ctx.run(lambda run: run.step("three", lambda: 3, atomic=True))

    @job("smoke.async", retry_delay=0)
    async def ahandler(payload, ctx):
        async def body(n):
            await asyncio.sleep(0)
            return n

        return await asyncio.gather(*(ctx.step("s", body, n) for n in range(5)))

    try:
        i = enqueue("smoke.run")
        j = enqueue("smoke.async")
        w = Worker(name="w")
        w.run_until_idle()
        w.stop()
        row = Job.objects.get(pk=i)
        assert row.state == "succeeded", row.error
        assert seen == ["body", 7, 7]
        assert get_run(f"job:{i}").state == "completed"
        row = Job.objects.get(pk=j)
        assert row.state == "succeeded" and row.result == [0, 1, 2, 3, 4], row.error
        assert [s.key for s in list_steps(f"job:{j}")] == ["s", "s#2", "s#3", "s#4", "s#5"]
        assert run_handler_once("smoke.async") == [0, 1, 2, 3, 4]
    finally:
        kinds.forget("smoke.run")
        kinds.forget("smoke.async")


@pytest.mark.django_db(transaction=True)
def test_unresolved_and_agent():
    @job("smoke.pay", retry_delay=0)
    def handler(payload, ctx):
        def boom():
            raise OSError("x")

        return ctx.step("pay", boom, side_effect=True)

    try:
        i = enqueue("smoke.pay")
        w = Worker(name="w")
        w.run_until_idle()
        row = Job.objects.get(pk=i)
        assert row.state == "dead" and "StepUnresolved" in row.error_class
        assert get_run(f"job:{i}").state == "failed"
        assert resolve_step(f"job:{i}", "pay", output=9)
        retry_job(i)
        assert get_run(f"job:{i}").state == "running"
        w.run_until_idle()
        w.stop()
        row = Job.objects.get(pk=i)
        assert row.state == "succeeded" and row.result == 9
    finally:
        kinds.forget("smoke.pay")

    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    def model(messages, tools):
        if len(messages) == 1:
            return {
                "content": "",
                "tool_calls": [
                    {"id": "1", "name": "add", "arguments": {"a": 1, "b": 2}},
                    {"id": "2", "name": "add", "arguments": {"a": "x"}},
                    {"id": "3", "name": "no"},
                ],
            }
        return "done " + messages[2]["content"]

    got = run_agent("ag", model, [add], "hi")
    assert got["text"] == "done 3" and got["turns"] == 2, got
    assert [s.key for s in list_steps("ag")] == [
        "model",
        "tool:add",
        "tool:add#2",
        "tool:unknown",
        "model#2",
    ]
