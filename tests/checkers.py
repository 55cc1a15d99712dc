"""The invariants, each a function of a History (reliability.md 2.3): the queue's, and all at once.

`check_q5(history)` returns what breaks rule Q5; every checker reads the history once. A checker is
trusted because `tests/chaos/test_harness.py` has seen it turn red.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.checkers_lanes import check_q13, check_q14, check_q17
from tests.checkers_runs import RUNS
from tests.history import Change, History, marks_of, short
from tests.violations import FINAL, JOB, TINY, Checker, Violation, invoked_marks, payload_of

#: Figures of all histories of this run that had to be green.
TOTALS: Counter[str] = Counter()


@dataclass
class Report:
    """What the checkers said of a history."""

    history: History
    violations: list[Violation]
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def red(self) -> set[str]:
        """The rules that were broken."""
        return {violation.rule for violation in self.violations}

    def __str__(self) -> str:
        lines = [", ".join(f"{name} {value}" for name, value in self.counts.items())]
        for violation in self.violations[:20]:
            lines.append(f"{violation.rule}: {violation.text} (jobs {list(violation.jobs)[:10]})")
            around = self.history.around(violation.jobs, violation.runs)
            lines += [f"    {line}" for line in around]
        if len(self.violations) > 20:
            lines.append(f"and {len(self.violations) - 20} more")
        return "\n".join(lines)

    def assert_green(self, hint: str = "") -> None:
        """Fail with everything that is known when a rule is broken; `hint` comes first."""
        TOTALS.update({**self.counts, "histories": 1})
        assert not self.violations, f"{hint}{self}"


def check_q1(h: History) -> list[Violation]:
    """Nothing whose enqueue returned is lost."""
    started = {record["job"] for record in h.told("start")}
    lost = [job for job in ok_ids(h) if job not in h.rows and job not in started]
    return [Violation("Q1", f"{len(lost)} jobs are lost", tuple(lost))] if lost else []


def check_q2(h: History) -> list[Violation]:
    """Nothing runs that nobody gave."""
    invoked = {mark["m"] for _, mark in invoked_marks(h)}
    strange = sorted(
        {r["job"] for r in h.told("start") if r.get("m") is not None and r["m"] not in invoked}
    )
    return [Violation("Q2", "jobs ran that nobody gave", tuple(strange))] if strange else []


def unknown_that_ran(h: History) -> int:
    """Return how many enqueues of unknown outcome took place (Q2b: counted and allowed)."""
    unknown = {record["call"] for record in h.client if record["type"] == "info"}
    given = {mark["m"] for call, mark in invoked_marks(h) if call in unknown}
    return len({record["m"] for record in h.told("start")} & given)


def check_q3(h: History) -> list[Violation]:
    """A batch is stored whole or not at all."""
    stored = {payload_of(row).get("m") for row in h.rows.values()}
    keys = {(row["org"], row["key"]) for row in h.rows.values() if row["key"] is not None}
    ends = {record["call"]: record for record in h.client if record["type"] != "invoke"}
    found = []
    for record in h.client:
        if record["type"] != "invoke" or record["f"] != "enqueue_many":
            continue
        present, absent = 0, 0
        for mark in marks_of(record["value"]):
            if mark["m"] in stored:
                present += 1
            elif (mark.get("org") or "", mark.get("key")) not in keys:
                absent += 1
        end = ends.get(record["call"], {"type": "info"})["type"]
        broken = (present and absent) or (end == "ok" and absent) or (end == "fail" and present)
        if broken:
            text = f"batch {record['call']} ended {end}: {present} stored, {absent} not"
            found.append(Violation("Q3", text))
    return found


def check_q4(h: History) -> list[Violation]:
    """One row a key; every call with it got the same id; the first payload is kept."""
    rows: dict[tuple[str, str], list[int]] = defaultdict(list)
    for job, row in h.rows.items():
        if row["key"] is not None:
            rows[row["org"], row["key"]].append(job)
    found = [
        Violation("Q4", f"key {key}: {len(jobs)} rows", tuple(jobs))
        for key, jobs in rows.items()
        if len(jobs) > 1
    ]
    answers, firsts = answers_by_key(h)
    for key, ids in answers.items():
        if len(ids) > 1:
            found.append(Violation("Q4", f"key {key}: several ids", tuple(ids)))
        found += [
            Violation("Q4", f"key {key}: not the first payload", (job,))
            for job in ids & h.rows.keys()
            if payload_of(h.rows[job]).get("m") not in firsts[key]
        ]
    return found


Keyed = dict[tuple[str, str], set[Any]]


def answers_by_key(h: History) -> tuple[Keyed, Keyed]:
    """Return for each key the ids that calls got, and the marks that may have come first."""
    answers: Keyed = defaultdict(set)
    firsts: Keyed = defaultdict(set)
    given: dict[str, Any] = {}
    for record in h.client:
        if not record["f"].startswith("enqueue"):
            continue
        if record["type"] == "invoke":
            given[record["call"]] = marks_of(record["value"])
            for key, mark in keyed(given[record["call"]]):
                if not answers[key]:  # nobody has had an answer yet
                    firsts[key].add(mark["m"])
        elif record["type"] == "ok":
            ids = record["id"] if isinstance(record["id"], list) else [record["id"]]
            job_of = dict(zip((mark["m"] for mark in given[record["call"]]), ids, strict=True))
            for key, mark in keyed(given[record["call"]]):
                answers[key].add(job_of[mark["m"]])
    return answers, firsts


def keyed(marks: Iterable[Any]) -> Iterator[tuple[tuple[str, str], Any]]:
    """Yield (org, key) and the mark of those that have a key."""
    for mark in marks:
        if mark.get("key") is not None:
            yield (mark.get("org") or "", mark["key"]), mark


def check_q5(h: History) -> list[Violation]:
    """Nobody claims a job while another's lease lasts.

    A holder's right ends with its own settle; what a reap takes lasts until its expiry.
    """
    reaped = h.outcomes()
    found = []
    for job, changes in h.of_job().items():
        ends, token = 0.0, None
        expiry = 0.0
        for change in changes:
            if change.new_state == "running":
                if change.new_token != token:
                    if change.db < ends - TINY:
                        early = ends - change.db
                        text = f"claimed {early:.3f} s before {short(token)} had to stop"
                        found.append(Violation("Q5", text, (job,)))
                    token = change.new_token
                expiry = ends = change.lease or 0.0
            elif change.old_state == "running":
                taken = reaped.get((job, str(change.old_token))) == "lease_lost"
                ends = expiry if taken else min(change.db, expiry)
    return found


def check_q6(h: History) -> list[Violation]:
    """Tokens are unique, settles carry the newest one, stale holders changed nothing and know."""
    found = []
    ended = {(r["job"], r["token"]): r for r in h.told("end")}
    started = {(r["job"], r["token"]) for r in h.told("start")}
    outcomes = h.outcomes()
    for job, changes in h.of_job().items():
        seen: set[str] = set()
        for change in changes:
            if change.new_state == "running" and change.old_state != "running":
                if change.new_token in seen:
                    found.append(Violation("Q6", "a token occurs twice", (job,)))
                seen.add(str(change.new_token))
            claim = (job, str(change.old_token))
            if change.new_state == "succeeded" and change.old_state == "running":
                end = ended.get(claim)
                if claim in started and (end is None or (end["db"] or 0.0) > change.db + TINY):
                    text = f"succeeded under {short(change.old_token)}, whose handler had not ended"
                    found.append(Violation("Q6", text, (job,)))
    told = Counter((record["proc"], record["job"]) for record in h.told("stale"))
    owed = Counter(
        (record["proc"], record["job"])
        for claim, record in ended.items()
        if outcomes.get(claim) == "lease_lost" and record["proc"] not in h.killed
    )
    for (proc, job), times in owed.items():
        if told[proc, job] < times:
            found.append(Violation("Q6", f"a stale holder in {proc} was not told", (job,)))
    return found


def entries(changes: Iterable[Change]) -> Iterator[tuple[Change, bool]]:
    """Yield entries into final states; True when one follows another with no retry between.

    A settle of a row that is final already shows as a new `finished_at`. discard_job's dead to
    canceled is an operator's act and no entry.
    """
    final, finished = False, None
    for change in changes:
        if change.op == "DELETE":
            return
        if change.new_state not in FINAL:
            final = False
            continue
        again = final and change.finished != finished
        if (not final or again) and (change.old_state, change.new_state) != ("dead", "canceled"):
            yield change, final
        final, finished = True, change.finished


def check_q7(h: History) -> list[Violation]:
    """A job ends once between two operator retries; nothing leaves a final state otherwise."""
    found = []
    for job, changes in h.of_job().items():
        for change, twice in entries(changes):
            if twice:
                found.append(Violation("Q7", f"ends again as {change.new_state}", (job,)))
        for change in changes:
            left = change.old_state in FINAL and change.new_state not in {*FINAL, None}
            if left and (change.new_state != "ready" or change.attempt != 0):
                text = f"{change.old_state} became {change.new_state} without an operator"
                found.append(Violation("Q7", text, (job,)))
    return found


def check_q8(h: History) -> list[Violation]:
    """attempt = claims since the last operator retry less refunds, and never above the maximum."""
    outcomes = h.outcomes()
    found = []
    for job, changes in h.of_job().items():
        attempt, revivals, deferrals = 0, 0, 0
        for change in changes:
            if change.op == "DELETE":
                break
            if change.revivals != revivals:
                attempt, revivals = 0, change.revivals
            if change.new_state == "running" and change.new_token != change.old_token:
                attempt += 1
            elif change.old_state == "running" and change.new_state != "running":
                outcome = outcomes.get((job, str(change.old_token)))
                refund = outcome in {"released", "canceled"}
                attempt -= 1 if refund or change.deferrals != deferrals else 0
            deferrals = change.deferrals or 0
            most = change.max_attempts or 1
            if change.attempt != attempt or attempt > most:
                text = f"attempt {change.attempt}, expected {attempt} of at most {most}"
                found.append(Violation("Q8", text, (job,)))
                break
    return found


def check_q9(h: History) -> list[Violation]:
    """A handler starts once, and once more for each failure, reap, release, deferral, retry."""
    starts = Counter(record["job"] for record in h.told("start"))
    allowed: Counter[int] = Counter()
    for change in h.audit:
        if change.table != JOB:
            if change.op == "INSERT" and change.outcome in {"failed", "timeout", "invalid"}:
                allowed[change.job] += 1
            elif change.op == "INSERT" and h.faulted:
                allowed[change.job] += 1  # lease_lost, released, canceled
    last: dict[int, Change] = {}
    for change in h.audit:
        if change.table == JOB and change.op != "DELETE":
            last[change.job] = change
    found = []
    for job, times in starts.items():
        most = 1 + allowed[job]
        if job in last:
            most += (last[job].deferrals or 0) + last[job].revivals
        if times > most:
            found.append(Violation("Q9", f"started {times} times, {most} allowed", (job,)))
    return found


def check_q10(h: History) -> list[Violation]:
    """Nothing is claimed before its time, nor while it is scheduled."""
    found = []
    for change in h.audit:
        if change.table != JOB or change.new_state != "running" or change.old_state == "running":
            continue
        if change.old_state != "ready":
            found.append(Violation("Q10", f"claimed while {change.old_state}", (change.job,)))
        if change.run_at is not None and change.db < change.run_at - TINY:
            early = change.run_at - change.db
            found.append(Violation("Q10", f"claimed {early:.3f} s too early", (change.job,)))
    return found


def check_q11(h: History) -> list[Violation]:
    """A worker starts only what is registered with it."""
    kinds = {record["proc"]: set(record["kinds"]) for record in h.told("worker")}
    return [
        Violation("Q11", f"{r['proc']} started kind {r['kind']}", (r["job"],))
        for r in h.told("start")
        if r["proc"] in kinds and r["kind"] not in kinds[r["proc"]]
    ]


def check_q12(h: History) -> list[Violation]:
    """A handler sees the payload that was given."""
    given = {mark["m"]: mark["payload"] for _, mark in invoked_marks(h) if "payload" in mark}
    return [
        Violation("Q12", f"payload {r['payload']!r} is not what was given", (r["job"],))
        for r in h.told("start")
        if r.get("m") in given and r["payload"] != given[r["m"]]
    ]


def check_q15(h: History) -> list[Violation]:
    """max_hold: revoked in time, leased until the handler returns, ended as a failure."""
    outcomes = h.outcomes()
    ends = {(r["job"], r["token"]): r for r in h.told("end")}
    revoked = {(r["job"], r["token"]): r for r in h.told("revoked") if r["why"] == "timeout"}
    found = []
    for start in h.told("start"):
        claim = (start["job"], start["token"])
        hold, end = start.get("max_hold"), ends.get(claim)
        if hold is None or end is None or start["proc"] in h.stopped:
            continue
        limit = start["t"] + hold + h.ttl / 3 + h.slack
        asked = revoked.get(claim)
        if (asked is None and end["t"] > limit) or (asked is not None and asked["t"] > limit):
            found.append(Violation("Q15", f"not asked to stop within {hold} s", (start["job"],)))
        if asked is not None and outcomes.get(claim) != "timeout":
            text = f"a handler out of time ended as {outcomes.get(claim)}"
            found.append(Violation("Q15", text, (start["job"],)))
    return found


def check_q16(h: History) -> list[Violation]:
    """A holder knows of its lost lease before it runs out by the database's clock."""
    expiries: dict[tuple[int, str], float] = {}
    for change in h.audit:
        if change.table == JOB and change.new_state == "running":
            expiries[change.job, str(change.new_token)] = change.lease or 0.0
    clocks = {(r["job"], r["token"]): r["db"] - r["t"] for r in h.told("start")}
    found = []
    for record in h.told("revoked"):
        claim = (record["job"], record["token"])
        if record["why"] != "lease-lost" or record["proc"] in h.stopped or claim not in expiries:
            continue
        late = record["t"] + clocks[claim] - expiries[claim]
        if late > h.slack:
            text = f"learned of its lost lease {late:.3f} s after the expiry"
            found.append(Violation("Q16", text, (record["job"],)))
    return found


def check_q18(h: History) -> list[Violation]:
    """After the last fault everything that is due ends in time."""
    if h.quiet_at is None or h.bound is None:
        return []
    open_jobs, late = [], []
    for job, changes in h.of_job().items():
        last = changes[-1]
        if last.op == "DELETE":
            continue
        if last.new_state not in FINAL:
            if last.new_state != "scheduled" or (last.run_at or 0) <= h.quiet_at + h.bound:
                open_jobs.append(job)
        elif last.db > h.quiet_at + h.bound + h.slack:
            late.append(job)
    found = []
    if open_jobs:
        found.append(Violation("Q18", f"{len(open_jobs)} jobs are not final", tuple(open_jobs)))
    if late:
        found.append(Violation("Q18", f"{len(late)} jobs ended late", tuple(late)))
    return found


def check_q19(h: History) -> list[Violation]:
    """A job that kills its worker ends dead after its attempts; jobs that harm nobody succeed."""
    found = []
    for job, row in h.rows.items():
        do, always = payload_of(row).get("do"), payload_of(row).get("always")
        if do == "die" and always:
            how = (row["state"], row["attempt"], row["error_class"])
            if how != ("dead", row["max_attempts"], "gnl_django.errors.LeaseExpired"):
                found.append(Violation("Q19", f"a poison job ended as {how}", (job,)))
        elif do == "end" and not h.killed and row["state"] in FINAL - {"succeeded"}:
            found.append(Violation("Q19", f"a harmless job is {row['state']}", (job,)))
    return found


def check_q20(h: History) -> list[Violation]:
    """Each entry into a final state is announced once; a killed process may have lost its word."""
    told: Counter[tuple[int, str]] = Counter((r["job"], r["state"]) for r in h.told("final"))
    happened: Counter[tuple[int, str]] = Counter()
    for job, changes in h.of_job().items():
        happened.update((job, str(change.new_state)) for change, _ in entries(changes))
    if not told and not h.told("worker"):
        return []  # nobody listened
    found = []
    for (job, state), times in told.items():
        if times > happened[job, state]:
            text = f"{state} announced {times} times, happened {happened[job, state]}"
            found.append(Violation("Q20", text, (job,)))
    if not h.killed and not h.cut:
        for (job, state), times in happened.items():
            if told[job, state] < times:
                found.append(Violation("Q20", f"{state} was not announced", (job,)))
    return found


QUEUE: dict[str, Checker] = {
    "Q1": check_q1,
    "Q2": check_q2,
    "Q3": check_q3,
    "Q4": check_q4,
    "Q5": check_q5,
    "Q6": check_q6,
    "Q7": check_q7,
    "Q8": check_q8,
    "Q9": check_q9,
    "Q10": check_q10,
    "Q11": check_q11,
    "Q12": check_q12,
    "Q13": check_q13,
    "Q14": check_q14,
    "Q15": check_q15,
    "Q16": check_q16,
    "Q17": check_q17,
    "Q18": check_q18,
    "Q19": check_q19,
    "Q20": check_q20,
}
AREAS = {"queue": QUEUE, "runs": RUNS}


def check_all(history: History, areas: Iterable[str] = tuple(AREAS)) -> Report:
    """Run every checker of `areas` and return the report."""
    found = [
        violation
        for area in areas
        for check in AREAS[area].values()
        for violation in check(history)
    ]
    return Report(history, found, counts(history))


def counts(h: History) -> dict[str, int]:
    """Return the figures of a run: jobs, starts, kills, lost, doubled and what became of all."""
    ends: Counter[str] = Counter(row["state"] for row in h.rows.values())
    return {
        "jobs": len(h.rows),
        "starts": len(h.told("start")),
        "kills": len(h.killed),
        **{state: ends[state] for state in sorted(ends)},
        "stale": len(h.told("stale")),
        "unknown that ran": unknown_that_ran(h),
        "lost": sum(len(violation.jobs) for violation in check_q1(h)),
        "doubled": len({job for violation in check_q7(h) for job in violation.jobs}),
    }


def ok_ids(h: History) -> list[int]:
    """Return the ids that enqueues gave back."""
    found: list[int] = []
    for record in h.client:
        if record["type"] == "ok" and record["f"].startswith("enqueue"):
            found += record["id"] if isinstance(record["id"], list) else [record["id"]]
    return found
