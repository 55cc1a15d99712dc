"""Durable handlers of the fault tests: they walk through steps and write down what each did.

A plan names its steps in order. `die` makes the process kill itself in that step's body, just
before or just after the effect, at the run's first entry; `fall` makes the body raise there.
"""

import os
import signal
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Literal
from uuid import uuid4

from pydantic import BaseModel

from gnl_django import (
    JobContext,
    RunContext,
    StepInfo,
    current_step,
    job,
    run_agent,
    run_durable,
    tool,
)
from gnl_django.core import payloads
from tests.chaos.telling import effects
from tests.history import database_clock, read_log
from tests.run_history import leave_effect

CLAIM_TTL = 1  # seconds, the shortest


class Part(BaseModel):
    """One step."""

    name: str
    mode: Literal["plain", "side_effect", "atomic"] = "plain"
    recover: bool = False
    die: Literal["", "before", "after"] = ""
    fall: Literal["", "before", "after"] = ""
    claim_ttl: int = CLAIM_TTL


class Plan(BaseModel):
    """The steps of a run; `m` marks the call that gave it."""

    m: str
    parts: list[Part]
    strict: bool = True
    input: Any = None


class Walk:
    """One entry into a run by a plan's handler."""

    def __init__(self, run: JobContext | RunContext, by: str) -> None:
        log = effects()
        assert log is not None
        self.log, self.run, self.by = log, run, by
        self.ordinal, self.uses = 0, Counter[str]()

    def go(self, plan: Plan) -> list[Any]:
        """Do the steps; return what they returned."""
        return [self.step(part) for part in plan.parts]

    def step(self, part: Part) -> Any:
        """Do one step and tell what came of it."""
        self.ordinal += 1
        self.uses[part.name] += 1
        key = part.name if self.uses[part.name] == 1 else f"{part.name}#{self.uses[part.name]}"
        how: dict[str, Any] = {}
        if part.mode == "side_effect":
            recover = self.asked if part.recover else None
            how = {"side_effect": True, "recover": recover, "claim_ttl": part.claim_ttl}
        elif part.mode == "atomic":
            how = {"atomic": True}
        try:
            value = self.run.step(part.name, partial(self.body, part), **how)
        except Exception as error:
            self.tell("refused", key=key, error=type(error).__name__)
            raise
        self.tell("got", key=key, ordinal=self.ordinal, value=payloads.dump(value))
        return value

    def tell(self, e: str, **values: Any) -> None:
        """Write a line about this run."""
        self.log.write(e=e, run=self.run.run_id, by=self.by, db=database_clock("default"), **values)

    def body(self, part: Part) -> dict[str, Any]:
        """Be a step's body, with an effect in the middle."""
        info = current_step()
        assert info is not None
        facts = {"key": info.key, "mode": part.mode}
        self.tell("body", recover=part.recover, **facts)
        self.meet(part, "before", facts)
        if part.mode == "atomic":
            leave_effect(self.run.run_id, info.key)
        else:
            self.tell("fire", **facts)
        self.meet(part, "after", facts)
        return {"by": self.by, "key": info.key, "n": uuid4().hex}

    def meet(self, part: Part, moment: str, facts: dict[str, Any]) -> None:
        """Come to harm, if the plan says so."""
        if moment not in {part.die, part.fall} or len(self.told("body", facts["key"])) > 1:
            return
        if part.die == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            self.tell("fell", **facts)
            raise ValueError(f"asked to fail {moment} the effect")

    def told(self, e: str, key: str) -> list[dict[str, Any]]:
        """Return the lines of one sort about a step."""
        run_id = self.run.run_id
        lines = (record for record in read_log(self.log.path) if record["e"] == e)
        return [record for record in lines if (record["run"], record["key"]) == (run_id, key)]

    def asked(self, info: StepInfo) -> dict[str, Any]:
        """Find out what became of a side effect, as a provider of payments would tell."""
        if not self.told("fire", info.key):
            return {"done": False}
        return {"done": True, "output": {"by": self.by, "key": info.key, "n": "recovered"}}


def keeping_history(ctx: JobContext, plan: BaseModel, work: Callable[[], Any]) -> Any:
    """Do `work` between the two lines of an attempt."""
    log = effects()
    assert log is not None
    log.attempt("start", ctx, m=getattr(plan, "m", None), payload=plan.model_dump())
    ctx.signal.on_revoke(
        lambda: log.write(
            e="revoked", job=ctx.job_id, token=ctx.claim_token, why=ctx.signal.why or ""
        )
    )
    outcome = "failed"
    try:
        answer = work()
        outcome = "ok"
        return answer
    finally:
        log.attempt("end", ctx, outcome=outcome)


@job("chaos.durable", retry_delay=0.05, max_attempts=25)
def durable(plan: Plan, ctx: JobContext) -> list[Any]:
    """Walk through the plan in the job's own run."""
    walk = Walk(ctx, ctx.claim_token)
    return list(keeping_history(ctx, plan, lambda: walk.go(plan)))


def alone(run: RunContext, plan: Plan) -> list[Any]:
    """Walk through the plan in a run that stands alone."""
    right = run.entry.rights[-1].token if run.entry.rights else ""
    walk = Walk(run, right)
    if plan.input is not None:
        walk.tell("input", given=plan.input, strict=plan.strict, seen=run.input)
    return walk.go(plan)


def stand(run_id: str, plan: Plan) -> Any:
    """Enter a run that stands alone; tell when it is refused."""
    given = {"strict": plan.strict, "input": plan.input}
    return run_durable(run_id, alone, plan, **given)


class Ask(BaseModel):
    """A question for the agent."""

    m: str


#: What the model says in each turn: the name of the tool that it calls, then its last words.
TURNS = ("charge", "note")


def reply_to(messages: list[dict[str, Any]]) -> dict[str, Any] | str:
    """Be the model: it calls one tool after another, then says what they answered."""
    turn = sum(message["role"] == "assistant" for message in messages)
    if turn < len(TURNS):
        call = {"id": f"call-{turn}", "name": TURNS[turn], "arguments": {"amount": 10 + turn}}
        return {"content": "", "tool_calls": [call]}
    said = [message["content"] for message in messages if message["role"] == "tool"]
    return "done: " + ", ".join(said)


class Talk:
    """One attempt of the agent's job."""

    def __init__(self, ctx: JobContext) -> None:
        self.walk = Walk(ctx, ctx.claim_token)

    def begun(self, mode: str) -> str:
        """Tell of a body and return its key."""
        info = current_step()
        assert info is not None
        self.walk.tell("body", key=info.key, mode=mode, recover=mode == "side_effect")
        return info.key

    def model(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Any:
        """Answer, and count that somebody asked."""
        self.walk.tell("fire", key=self.begun("plain"), mode="plain")
        return reply_to(messages)

    def charge(self, amount: int) -> str:
        """Take money."""
        self.walk.tell("fire", key=self.begun("side_effect"), mode="side_effect")
        return f"charged {amount}"

    def charged(self, info: StepInfo) -> dict[str, Any]:
        """Ask whether the money was taken."""
        answer = self.walk.asked(info)
        return {"done": True, "output": "charged 10"} if answer["done"] else answer

    def note(self, amount: int) -> str:
        """Write it down, here in the database."""
        leave_effect(self.walk.run.run_id, self.begun("atomic"))
        return f"noted {amount}"

    def tools(self) -> list[Any]:
        """Return what the model may call."""
        charge = tool(self.charge, name="charge", recover=self.charged, claim_ttl=CLAIM_TTL)
        return [charge, tool(self.note, name="note", mode="atomic")]


@job("chaos.agent", retry_delay=0.05, max_attempts=25)
def agent(ask: Ask, ctx: JobContext) -> Any:
    """Let a model of three turns charge and note."""
    talk = Talk(ctx)
    question = f"please do {ask.m}"
    return keeping_history(
        ctx, ask, lambda: run_agent(ctx.run_id, talk.model, talk.tools(), question)
    )
