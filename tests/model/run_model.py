"""Durable runs in plain Python: small programs of steps, and what must come of them (runs.md 4).

`Interpreter` runs a program as the specification says, without SQL; a crash may come at any
`moment`. Used by `test_runs_machine`, which runs the same programs with the product.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

LEASE, CLAIM_TTL = 30, 60  # seconds


@dataclass(frozen=True)
class Do:
    """A step. Its first body falls before or after the effect; `caught`: the caller goes on."""

    name: str
    mode: str = "plain"
    fall: str = ""
    caught: bool = False


@dataclass(frozen=True)
class If:
    """What to do when the last value was odd, and when it was even."""

    odd: "Program"
    even: "Program"


@dataclass(frozen=True)
class Loop:
    """A body that is run so many times, once more when the last value was odd."""

    times: int
    body: "Program"


Program = tuple[Do | If | Loop, ...]


class Crash(BaseException):
    """The process is gone."""


class Refused(Exception):
    """An error of the runs, by the name of its class."""


class Fell(Exception):
    """A body raised."""


def walk(program: Program, do: Callable[[Do], int], values: list[int]) -> list[int]:
    """Go through a program; return all values of its steps."""
    for part in program:
        odd = bool(values and values[-1] % 2)
        if isinstance(part, If):
            walk(part.odd if odd else part.even, do, values)
        elif isinstance(part, Loop):
            for _ in range(part.times + odd):
                walk(part.body, do, values)
        else:
            values.append(do(part))
    return values


@dataclass
class World:
    """What bodies did; it stays when a process is gone. `rows` are those of the database."""

    bodies: Counter[str] = field(default_factory=Counter)
    fires: list[str] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)


@dataclass
class Rec:
    """A step as it must be stored."""

    ordinal: int
    mode: str
    state: str
    attempt: int
    output: int | None = None
    claimed_at: int = 0


@dataclass
class Interpreter:
    """A run and, when `owned`, its job; time in whole seconds."""

    owned: bool
    strict: bool
    now: int = 0
    world: World = field(default_factory=World)
    steps: dict[str, Rec] = field(default_factory=dict)
    state: str = ""  # of the run; "" before its first entry
    job: str = "ready"
    entries: int = 0
    attempt: int = 0
    until: int = 0  # the end of the lock, or of the job's lease; 0: nobody holds it
    due: int = 0
    flagged: bool = False
    input: int | None = None
    result: Any = None

    def enter(self, program: Program, given: int | None, crash_at: int) -> Any:
        """Enter; return the values. Raises Refused, Fell, Crash."""
        self.left, self.ordinal, self.uses = crash_at, 0, Counter[str]()
        begin, end = (self._claim, self._settle) if self.owned else (self._lock, self._leave)
        begin(given)
        if self.state == "completed":
            return self.result
        try:
            if self.other_input(given):
                raise Refused("RunInputMismatch")  # noqa: TRY301 - one way out for all
            self.state, self.entries = "running", self.entries + 1
            self.number = self.attempt if self.owned else self.entries
            self.input = given if self.input is None else self.input
            values = walk(program, self.do, [])
        except (Refused, Fell) as error:
            end(error, None)
            raise
        end(None, values)
        return values

    @property
    def over(self) -> bool:
        """Whether another entry changes nothing."""
        final = {"completed", "canceled"}
        return self.job in {*final, "dead"} if self.owned else self.state in final

    def other_input(self, given: int | None) -> bool:
        """Whether a strict run was begun with another input."""
        return self.strict and self.input is not None and given not in {None, self.input}

    def moment(self) -> None:
        """Pass a moment at which a process may die."""
        self.left -= 1
        if self.left == 0:
            raise Crash

    # steps

    def do(self, call: Do) -> int:
        """A step, and who calls it."""
        try:
            return self.step(call)
        except Fell:
            if not call.caught:
                raise
            return -1

    def step(self, call: Do) -> int:
        """R10-R17."""
        self.ordinal += 1
        self.uses[call.name] += 1
        use = self.uses[call.name]
        key = call.name if use == 1 else f"{call.name}#{use}"
        there = [k for k, rec in self.steps.items() if rec.ordinal == self.ordinal]
        if self.strict and there and key not in there:
            raise Refused("NonDeterministicRun")
        rec = self.steps.get(key)
        if rec is not None and rec.state == "done":
            return self._value(rec)
        self.moment()  # step.begin
        if rec is not None or call.mode in {"asked", "blind"}:
            return self._side_effect(key, call, rec)
        before = list(self.world.rows)
        try:
            value = self.body(key, call)
            self.moment()  # step.effect_done
            self.moment()  # step.journaled
        except BaseException:
            if call.mode == "atomic":
                self.world.rows = before
            raise
        self.steps[key] = Rec(self.ordinal, call.mode, "done", self.number, value)
        self.moment()  # step.committed
        return value

    def _side_effect(self, key: str, call: Do, rec: Rec | None) -> int:
        if rec is not None and rec.state != "released":
            if rec.state == "claimed" and self.now - rec.claimed_at < CLAIM_TTL:
                self.wait = CLAIM_TTL - (self.now - rec.claimed_at)
                raise Refused("StepInFlight")
            if call.mode != "asked":
                raise Refused("StepUnresolved")
            if key in self.world.fires:
                self.moment()  # step.journaled
                rec.state, rec.output = "done", 1000 + self.world.fires.count(key)
                self.moment()  # step.committed
                return self._value(rec)
        if rec is None:
            rec = self.steps[key] = Rec(self.ordinal, "side_effect", "claimed", self.number)
        rec.state, rec.claimed_at, rec.attempt = "claimed", self.now, self.number
        self.moment()  # step.claimed
        try:
            value = self.body(key, call)
        except Fell:
            rec.state = "failed"
            raise
        self.moment()  # step.effect_done
        self.moment()  # step.journaled
        rec.state, rec.output = "done", value
        self.moment()  # step.committed
        return value

    def body(self, key: str, call: Do) -> int:
        """Have an effect in the middle."""
        self.world.bodies[key] += 1
        effects = self.world.rows if call.mode == "atomic" else self.world.fires
        self.moment()
        if call.fall == "before" and self.world.bodies[key] == 1:
            raise Fell
        effects.append(key)
        self.moment()
        if call.fall == "after" and self.world.bodies[key] == 1:
            raise Fell
        return effects.count(key)

    @staticmethod
    def _value(rec: Rec) -> int:
        assert rec.output is not None
        return rec.output

    # a run that stands alone (R1, R2, R7, R24)

    def _lock(self, given: int | None) -> None:
        if self.state == "canceled":
            raise Refused("RunCanceled")
        if self.other_input(given) and (self.until > self.now or not self.flagged):
            raise Refused("RunInputMismatch")
        if self.state == "completed":
            return
        if self.until > self.now:
            raise Refused("RunBusy")
        if self.flagged:
            self.state, self.until = "canceled", 0
            raise Refused("RunCanceled")
        self.until = self.now + LEASE

    def _leave(self, error: Exception | None, values: Any) -> None:
        self.moment()  # run.final
        self.until = 0
        self.state = "failed" if error is not None else "completed"
        self.result = values

    # the run of a job (R7, R8; queue.md R32, R35, R43)

    def _claim(self, given: int | None) -> None:
        self.reap()
        if self.job != "ready":
            raise Refused("nothing")
        self.job, self.until, self.attempt = "running", self.now + LEASE, self.attempt + 1

    def reap(self) -> None:
        """What a worker does before it claims."""
        if self.job == "scheduled" and self.due <= self.now:
            self.job = "ready"
        if self.job == "running" and self.until <= self.now:
            self.until, self.job = 0, "canceled" if self.flagged else "ready"
            if self.flagged and self.state:
                self.state = "canceled"

    def _settle(self, error: Exception | None, values: Any) -> None:
        name = str(error) if error is not None else ""
        if error is None:
            self.moment()  # complete.updated
            self.job = self.state = "completed"
        elif name == "StepInFlight":
            self.job, self.due = "scheduled", self.now + self.wait
            self.attempt -= 1
        elif name == "StepUnresolved":
            self.job, self.state = "dead", "failed"
        else:
            self.job = "ready"
        self.until = 0

    # operators

    def cancel(self) -> bool:
        """R24."""
        live = self.until > self.now
        if not self.owned:
            if self.state not in {"running", "failed"}:
                return False
            self.flagged = True
            self.state = self.state if live else "canceled"
            self.until = self.until if live else 0
            return True
        if self.job not in {"ready", "scheduled", "running"}:
            return False
        self.flagged = True
        if self.job != "running":
            self.job = "canceled"
            self.state = self.state and "canceled"
        return True

    def resolve(self, key: str, output: int | None) -> bool:
        """R22."""
        rec = self.steps.get(key)
        if rec is None or rec.mode != "side_effect" or rec.state not in {"failed", "claimed"}:
            return False
        if rec.state == "claimed" and self.now - rec.claimed_at < CLAIM_TTL:
            return False
        rec.state, rec.output = ("released", None) if output is None else ("done", output)
        return True

    def revive(self) -> bool:
        """R8."""
        if self.job not in {"dead", "canceled"}:
            return False
        self.job, self.attempt, self.flagged = "ready", 0, False
        self.state = "running" if self.state in {"failed", "canceled"} else self.state
        return True
