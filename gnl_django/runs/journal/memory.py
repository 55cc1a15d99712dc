"""The journal of a trial run (`run_handler_once`): nothing is written, all is forgotten (R47)."""

from collections.abc import Sequence
from typing import TypeVar

from gnl_django.runs.journal.base import (
    Journal,
    Lock,
    NewRun,
    NewStep,
    Recorded,
    RunRow,
    Written,
)
from gnl_django.runs.rights import Right

T = TypeVar("T")


class MemoryJournal(Journal):
    """Keeps the keys of one run, so that the rules of steps hold in a trial too."""

    shared = False

    def __init__(self, using: str) -> None:
        super().__init__(using)
        self._steps: list[Recorded] = []
        self._marks: dict[str, str] = {}
        self._input: tuple[str | None, str | None] = (None, None)

    def enter(self, run: NewRun, rights: Sequence[Right], lock: Lock | None) -> RunRow | None:
        """Enter for the first and only time."""
        self._input = (run.input, run.input_hash)
        return RunRow(
            0, "running", run.strict, run.org, run.input, run.input_hash, 1, None, "", True
        )

    def has(self, run_pk: int) -> bool:
        """It is in memory."""
        return True

    def steps(self, run_pk: int, after: tuple[int, int]) -> list[Recorded]:
        """Nothing was recorded before."""
        return []

    def step(self, run_pk: int, key: str) -> Recorded | None:
        """Return what this run has recorded."""
        return next((step for step in self._steps if step.key == key), None)

    def add(self, step: NewStep, rights: Sequence[Right]) -> Written:
        """Note the step."""
        state = "claimed" if step.output is None else "done"
        self._steps.append(
            Recorded(len(self._steps), step.key, step.ordinal, state, step.output, step.claim_token)
        )
        return Written(held=True, changed=True, pk=len(self._steps) - 1)

    def record(self, step_pk: int, token: str, output: str, rights: Sequence[Right]) -> Written:
        """Nothing is read again."""
        return Written(held=True, changed=True)

    def adopt(
        self, step_pk: int, old: str | None, new: NewStep, rights: Sequence[Right]
    ) -> Written:
        """Nothing is abandoned."""
        return Written(held=True)

    def give_up(
        self, step_pk: int, token: str, state: str, error: str, rights: Sequence[Right]
    ) -> Written:
        """Nothing is read again."""
        return Written(held=True, changed=True)

    def freeze_input(self, run_pk: int, text: str, digest: str, rights: Sequence[Right]) -> Written:
        """The first one stays."""
        if self._input[1] is None:
            self._input = (text, digest)
        return Written(held=True, changed=True)

    def input_of(self, run_pk: int) -> tuple[str | None, str | None]:
        """Return the first one."""
        return self._input

    def cancel_reason(self, rights: Sequence[Right]) -> str:
        """Nobody can ask it to stop."""
        return ""

    def claim_mark(self, key: str, value: str) -> bool:
        """True for the first in this run."""
        if key in self._marks:
            return False
        self._marks[key] = value
        return True

    def mark(self, key: str, *, latest: bool = False) -> str | None:
        """Return what this run has noted."""
        return self._marks.get(key)
