"""The invariants of durable runs, each a function of a History (reliability.md 2.3).

Handlers of `tests.chaos.durable` tell of a step: `body` when its body begins, `fire` at an effect
outside of the database, `fell` when the body raises, `got` when the step returned to the handler,
`refused` when it raised. The audit of `tests.run_history` knows what was recorded, and under whose
token. Trusted because `tests/chaos/test_run_harness.py` has seen each of them turn red.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from tests.history import History, Record
from tests.run_history import STEP, RunChange
from tests.violations import TINY, Checker, Violation

Key = tuple[str, str]
FOLLOWS = {"succeeded": "completed", "dead": "failed", "canceled": "canceled"}


def key_of(record: Record) -> Key:
    """Return (run, step key) of an effect line."""
    return record["run"], record["key"]


def broken(rule: str, key: Key, text: str) -> Violation:
    """Return a violation about one step."""
    return Violation(rule, f"step {key[1]} of run {key[0]}: {text}", runs=(key[0],))


def step_changes(h: History) -> Iterator[tuple[Key, RunChange]]:
    """Yield the changes of steps."""
    for change in h.run_audit:
        if change.table == STEP and change.step is not None:
            yield (change.run, change.step), change


def records(h: History) -> dict[Key, RunChange]:
    """Return for each step the change that recorded it first."""
    found: dict[Key, RunChange] = {}
    for key, change in step_changes(h):
        if change.new_state == "done":
            found.setdefault(key, change)
    return found


def check_r1(h: History) -> list[Violation]:
    """A step is recorded once, and what is recorded stays as it is."""
    times: Counter[Key] = Counter()
    found = []
    for key, change in step_changes(h):
        if change.op == "DELETE":
            continue
        if change.old_state == "done":
            if (change.new_state, change.new_value) != ("done", change.old_value):
                found.append(broken("R1", key, "its record was changed"))
        elif change.new_state == "done":
            times[key] += 1
    found += [broken("R1", key, f"recorded {n} times") for key, n in times.items() if n > 1]
    return found


def check_r2(h: History) -> list[Violation]:
    """Whoever gets a step's output gets the bytes that are recorded."""
    recorded = records(h)
    found = []
    for record in h.told("got"):
        key = key_of(record)
        if key not in recorded:
            found.append(broken("R2", key, "returned, but never recorded"))
        elif record["value"] != recorded[key].new_value:
            found.append(broken("R2", key, "returned something else than is recorded"))
    return found


def check_r3(h: History) -> list[Violation]:
    """No body begins after its step was recorded.

    One that was frozen just before its plain body cannot know of a record made meanwhile.
    """
    recorded = records(h)
    found = []
    for record in h.told("body"):
        key = key_of(record)
        frozen = record["mode"] == "plain" and record["proc"] in h.stopped
        if key in recorded and record["db"] > recorded[key].db + TINY and not frozen:
            late = record["db"] - recorded[key].db
            found.append(broken("R3", key, f"begun {late:.3f} s after its record"))
    return found


def check_r4(h: History) -> list[Violation]:
    """An atomic step has left one effect when it is recorded, and none otherwise."""
    recorded, effects = records(h), Counter(h.run_effects)
    tried = {key_of(record) for record in h.told("body") if record["mode"] == "atomic"}
    found = []
    for key in tried | effects.keys():
        due = 1 if key in recorded else 0
        if effects[key] != due:
            found.append(broken("R4", key, f"{effects[key]} effects, {due} records"))
    return found


def check_r4b(h: History) -> list[Violation]:
    """A side effect happens once at most; without `recover` its body begins once at most.

    But for an operator who said that it may be run again.
    """
    again = Counter(key for key, change in step_changes(h) if change.new_state == "released")
    fires = Counter(key_of(r) for r in h.told("fire") if r["mode"] == "side_effect")
    blind = [r for r in h.told("body") if r["mode"] == "side_effect" and not r["recover"]]
    starts = Counter(key_of(record) for record in blind)
    found = [broken("R4b", key, f"happened {n} times") for key, n in fires.items() if n > 1]
    found += [
        broken("R4b", key, f"begun {n} times without anybody knowing")
        for key, n in starts.items()
        if n > 1 + again[key]
    ]
    return found


def check_r5(h: History) -> list[Violation]:
    """A body begins once, and once more for each crash, failure or loss of right inside it."""
    starts = Counter(key_of(record) for record in h.told("body"))
    fell = {(key_of(record), record["by"]) for record in h.told("fell")}
    outcomes = {token: outcome for (_, token), outcome in h.outcomes().items()}
    spared: Counter[Key] = Counter()
    for record in h.told("body"):
        lost = outcomes.get(record["by"]) in {"lease_lost", "released", "canceled", "timeout"}
        gone = record["proc"] in h.killed or record["proc"] in h.stopped
        if lost or gone or (key_of(record), record["by"]) in fell:
            spared[key_of(record)] += 1
    return [
        broken("R5", key, f"begun {n} times, {1 + spared[key]} allowed")
        for key, n in starts.items()
        if n > 1 + spared[key]
    ]


def check_r6(h: History) -> list[Violation]:
    """The first input stays; who demands another one is refused, others go on with the first."""
    found = []
    for change in h.run_audit:
        kept = change.op == "DELETE" or change.old_value in {None, change.new_value}
        if change.table != STEP and not kept:
            text = f"the input of run {change.run} was changed"
            found.append(Violation("R6", text, runs=(change.run,)))
    for record in h.told("input"):
        run = h.runs.get(record["run"])
        if run is None:
            continue
        first = run["input"]
        wrong = record["seen"] is not None and record["seen"] != first
        if wrong or (record["strict"] and record["given"] != first and record["seen"] is not None):
            text = f"run {record['run']} went on with another input"
            found.append(Violation("R6", text, runs=(record["run"],)))
    return found


def check_r7(h: History) -> list[Violation]:
    """In a strict run a place in the order belongs to one step, and nobody gets another's value."""
    strict = {run_id for run_id, run in h.runs.items() if run["strict"]}
    places: dict[tuple[str, Any], set[str]] = defaultdict(set)
    for (run, step), change in step_changes(h):
        if change.op == "INSERT":
            places[run, change.ordinal].add(step)
    found = [
        Violation("R7", f"run {run}: {sorted(keys)} stand in one place", runs=(run,))
        for (run, _), keys in places.items()
        if run in strict and len(keys) > 1
    ]
    for record in h.told("got"):
        there = places[record["run"], record["ordinal"]]
        if record["run"] in strict and there and record["key"] not in there:
            found.append(broken("R7", key_of(record), f"got the value of {sorted(there)}"))
    return found


def check_r8(h: History) -> list[Violation]:
    """Every step is written by the one who has the right to at that moment."""
    found = []
    for key, change in step_changes(h):
        if change.op == "DELETE" or (change.old_token, change.old_state) == (
            change.new_token,
            change.new_state,
        ):
            continue  # a claim that is kept fresh
        if (change.op == "INSERT" or change.new_state == "claimed") and change.owner is None:
            found.append(broken("R8", key, f"{change.new_state} while nobody held the run"))
        if change.new_state != "done" or change.new_value is None:
            continue
        output = json.loads(change.new_value)
        by = output.get("by") if isinstance(output, dict) else None
        if by is not None and by != change.owner:
            found.append(broken("R8", key, "recorded by a holder who had lost the run"))
    return found


def check_r9(h: History) -> list[Violation]:
    """The run of a job is what its job has become."""
    found = []
    for job, row in h.rows.items():
        run = h.runs.get(f"job:{job}")
        due = FOLLOWS.get(row["state"], "running")
        if run is not None and run["state"] != due:
            text = f"job {job} is {row['state']}, its run {run['state']}"
            found.append(Violation("R9", text, (job,), (run["run_id"],)))
    return found


RUNS: dict[str, Checker] = {
    "R1": check_r1,
    "R2": check_r2,
    "R3": check_r3,
    "R4": check_r4,
    "R4b": check_r4b,
    "R5": check_r5,
    "R6": check_r6,
    "R7": check_r7,
    "R8": check_r8,
    "R9": check_r9,
}
