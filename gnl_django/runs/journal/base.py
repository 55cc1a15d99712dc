"""The journal's interface: every state write of the runs and every SQL text behind one class.

`postgresql` and `rowwise` (MySQL, SQLite) implement what has to be fast or differs; `memory` serves
a trial run. A write happens only while the caller's rights hold, in the same transaction
(runs.md R4). Callers: the entry, the steps and the functions of `runs.api`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from gnl_django.core.statements import Statements
from gnl_django.runs.rights import Right

T = TypeVar("T")

#: Steps of one page when a journal is read.
PAGE = 1_000


@dataclass(frozen=True, slots=True)
class NewRun:
    """What an entry knows of the run; the first one sets org, strict, input and slot (R1)."""

    run_id: str
    org: str
    strict: bool
    input: str | None
    input_hash: str | None
    scheduled_for: datetime | None


@dataclass(frozen=True, slots=True)
class Lock:
    """The run's own lock, to be taken by an entry (R2)."""

    token: str
    holder: str
    ttl: float


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run as an entry found it and left it; texts are not parsed yet.

    `entered`: this call entered it. `busy_for`: seconds that another's lock still lasts.
    """

    pk: int
    state: str
    strict: bool
    org: str
    input: str | None
    input_hash: str | None
    entries: int
    result: str | None
    cancel_reason: str
    entered: bool
    busy_for: float = 0.0


def has_other_input(row: RunRow, run: NewRun) -> bool:
    """Tell whether a strict run was begun with another input than this entry gives (R6)."""
    return row.strict and bool(run.input_hash) and row.input_hash not in {None, run.input_hash}


@dataclass(frozen=True, slots=True)
class Recorded:
    """A step as the journal has it. `age` is that of its claim, in seconds."""

    pk: int
    key: str
    ordinal: int
    state: str
    output: str | None
    claim_token: str | None = None
    claim_ttl: int | None = None
    age: float = 0.0


@dataclass(frozen=True, slots=True)
class NewStep:
    """A step about to be written. `took` is how long ago its body began, in seconds."""

    run_pk: int
    key: str
    ordinal: int
    mode: str
    attempt: int
    took: float = 0.0
    output: str | None = None
    claim_token: str | None = None
    claim_ttl: int | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a write: whether the rights held, the owner is asked to stop, a row changed.

    `pk` is the id of a new row.
    """

    held: bool
    cancel: bool = False
    changed: bool = False
    pk: int | None = None


LOST = Written(held=False)


class Journal(Statements, ABC):
    """The runs' rows on one database alias; every thread has its own connection."""

    #: Whether others can see what is written.
    shared = True

    # entering and leaving

    @abstractmethod
    def enter(self, run: NewRun, rights: Sequence[Right], lock: Lock | None) -> RunRow | None:
        """Enter a run in one transaction, with its row made if there is none (R1).

        Takes `lock` when it is free or has our holder's name. None: a right is lost. A row that
        was not entered says why: its state, another input, or `busy_for`.
        """

    @abstractmethod
    def has(self, run_pk: int) -> bool:
        """Tell whether a run is there."""

    @abstractmethod
    def steps(self, run_pk: int, after: tuple[int, int]) -> list[Recorded]:
        """Return the next PAGE steps behind `after` (ordinal, id), in order."""

    @abstractmethod
    def step(self, run_pk: int, key: str) -> Recorded | None:
        """Return one step as it is now."""

    # writing steps

    @abstractmethod
    def add(self, step: NewStep, rights: Sequence[Right]) -> Written:
        """Write a new row: `done` with an output, `claimed` with a token (R14, R17)."""

    @abstractmethod
    def record(self, step_pk: int, token: str, output: str, rights: Sequence[Right]) -> Written:
        """Make our claim `done` (R17)."""

    @abstractmethod
    def adopt(
        self, step_pk: int, old: str | None, new: NewStep, rights: Sequence[Right]
    ) -> Written:
        """Take over an abandoned claim by comparing its token (R17)."""

    @abstractmethod
    def give_up(
        self, step_pk: int, token: str, state: str, error: str, rights: Sequence[Right]
    ) -> Written:
        """Make our claim `failed` or `released` (R18)."""

    def atomically(self, body: Callable[[], T]) -> T:
        """Run `body`, a user's code and our write, as one transaction of its own (R16).

        Inside somebody's atomic block, but for a test's, it is refused (Django's RuntimeError).
        """
        return self.own(body, durable=True)

    # what the entry may still learn or settle

    @abstractmethod
    def freeze_input(self, run_pk: int, text: str, digest: str, rights: Sequence[Right]) -> Written:
        """Store the input, if the run has none yet (R6)."""

    @abstractmethod
    def input_of(self, run_pk: int) -> tuple[str | None, str | None]:
        """Return the frozen input and its hash."""

    @abstractmethod
    def cancel_reason(self, rights: Sequence[Right]) -> str:
        """Return why the rights' owners are to stop, "" when nobody has said."""

    @abstractmethod
    def claim_mark(self, key: str, value: str) -> bool:
        """Insert a mark; False when the key is taken. In the caller's transaction (R23)."""

    @abstractmethod
    def mark(self, key: str, *, latest: bool = False) -> str | None:
        """Return a mark's value; `latest`: also when the caller's transaction is too old for it."""
