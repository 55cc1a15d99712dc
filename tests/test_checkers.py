"""Checkers on histories written by hand: each turns red on the smallest breach of its rule."""

from dataclasses import replace
from typing import Any

import pytest

from tests.checkers import check_all
from tests.history import Change, History

A, B = "a" * 32, "b" * 32


def change(seq: int, old: str | None, new: str | None, at: float, **values: Any) -> Change:
    """Return a change of job 7."""
    given: dict[str, Any] = {
        "old_token": None, "new_token": None, "attempt": 0, "max_attempts": 5, "revivals": 0,
        "deferrals": 0, "run_at": 9.0, "lease": None, "finished": None, "outcome": None, **values,
    }  # fmt: skip
    op = "INSERT" if old is None else "UPDATE"
    return Change(seq, "gnl_django_job", op, 7, 7, old, new, db=at, txid=0, **given)


def lost(seq: int, token: str, at: float, outcome: str = "lease_lost") -> Change:
    """Return the insertion of an Attempt row."""
    row = change(seq, None, None, at, new_token=token, attempt=1, outcome=outcome)
    return replace(row, table="gnl_django_attempt")


def effect(e: str, token: str, t: float, db: float, **values: Any) -> dict[str, Any]:
    """Return a line of job 7's handler."""
    line = {"e": e, "t": t, "db": db, "proc": token[:1], "job": 7, "token": token, "m": "x"}
    return {**line, "kind": "k", "payload": {"m": "x"}, **values}


def zombie() -> History:
    """Return the history of reliability.md section 7: A is frozen, B finishes, A is told."""
    invoke = {"f": "enqueue", "proc": "c", "call": "c-1", "key": None, "t": 0.0}
    item = {"m": "x", "payload": {"m": "x"}}
    return History(
        client=[{**invoke, "type": "invoke", "value": item}, {**invoke, "type": "ok", "id": 7}],
        effects=[
            {"e": "worker", "t": 0.0, "proc": "a", "kinds": ["k"]},
            {"e": "worker", "t": 0.0, "proc": "b", "kinds": ["k"]},
            effect("start", A, 1.0, 10.01),
            effect("start", B, 3.02, 12.02),
            effect("end", B, 3.3, 12.3, outcome="ok"),
            effect("end", A, 4.0, 13.0, outcome="ok"),
            {"e": "stale", "t": 4.1, "proc": "a", "job": 7},
            {"e": "final", "t": 3.4, "proc": "b", "job": 7, "state": "succeeded"},
        ],
        audit=[
            change(9, None, "ready", 9.0),
            change(10, "ready", "running", 10.0, new_token=A, lease=12.0, attempt=1),
            lost(13, A, 12.003),
            change(14, "running", "ready", 12.003, old_token=A, attempt=1),
            change(15, "ready", "running", 12.01, new_token=B, lease=14.01, attempt=2),
            change(16, "running", "succeeded", 12.4, old_token=B, attempt=2, finished=12.4),
        ],
        rows={
            7: {
                "queue": "default",
                "org": "",
                "priority": 0,
                "key": None,
                "payload": {"m": "x"},
                "state": "succeeded",
                "attempt": 2,
            }
        },
        faulted=True,
        ttl=2.0,
        quiet_at=12.0,
        bound=10.0,
    )


def test_the_zombie_of_the_worked_example_is_green() -> None:
    check_all(zombie()).assert_green()


def test_a_violation_is_reported_with_what_happened_around_it() -> None:
    history = zombie()
    history.audit.append(change(17, "succeeded", "succeeded", 13.1, finished=13.1, attempt=2))
    report = check_all(history)
    assert report.red == {"Q7", "Q20"}
    assert "Q7: ends again as succeeded" in str(report)
    assert "audit 17 UPDATE job 7 succeeded->succeeded" in str(report)


def without(history: History, **known: Any) -> None:
    history.effects = [
        record
        for record in history.effects
        if any(record.get(name) != value for name, value in known.items())
    ]


def q1(h: History) -> None:
    h.rows = {}
    without(h, e="start")


def q2(h: History) -> None:
    h.client = []


def q3(h: History) -> None:
    items = [{"m": "x"}, {"m": "y"}]
    h.client[0] |= {"f": "enqueue_many", "value": items}
    h.client[1] |= {"f": "enqueue_many", "id": [7, 8]}


def q4(h: History) -> None:
    for row in (7, 8):
        h.rows[row] = {**h.rows[7], "key": "k"}


def q5(h: History) -> None:
    h.audit[1] = replace(h.audit[1], lease=12.5)


def q6(h: History) -> None:
    without(h, e="stale")


def q6_token(h: History) -> None:
    h.audit[4] = replace(h.audit[4], new_token=A)
    h.audit[5] = replace(h.audit[5], old_token=A)


def q7(h: History) -> None:
    h.audit.append(change(17, "succeeded", "ready", 13.0, attempt=2))
    h.audit.append(change(18, "ready", "canceled", 13.1, attempt=2, finished=13.1))


def q8(h: History) -> None:
    h.audit[3] = replace(h.audit[3], attempt=0)


def q8_most(h: History) -> None:
    h.audit = [replace(c, max_attempts=1) for c in h.audit]


def q9(h: History) -> None:
    h.effects.append(effect("start", B, 3.3, 12.35))


def q10(h: History) -> None:
    h.audit[1] = replace(h.audit[1], run_at=10.5)


def q10_state(h: History) -> None:
    h.audit[1] = replace(h.audit[1], old_state="scheduled")


def q11(h: History) -> None:
    h.effects[0]["kinds"] = []


def q12(h: History) -> None:
    h.client[0]["value"]["payload"] = {"m": "x", "more": 1}


def lanes(h: History, *orgs: str) -> list[int]:
    """Replace the history by jobs that became ready at 1 s, one of each org; return their ids."""
    jobs = list(range(10, 10 + len(orgs)))
    h.rows = {job: {**h.rows[7], "org": org} for job, org in zip(jobs, orgs, strict=True)}
    h.audit = [
        replace(change(job, None, "ready", 1.0), job=job, pk=job, op="INSERT") for job in jobs
    ]
    h.effects = [
        {"e": "worker", "t": 0.0, "proc": "a", "kinds": ["k"]},
        *[effect("start", f"t{job}", job, job, proc="a", job=job, m=None) for job in jobs],
    ]
    h.client = []
    h.faulted = False
    h.quiet_at = None
    return jobs


def claims(h: History, *jobs: int) -> None:
    """Let one worker claim jobs one after another, ten seconds apart."""
    for at, job in enumerate(jobs):
        claim = change(100 + at, "ready", "running", 10.0 * (at + 1), new_token=f"t{job}",
                       lease=1e9, attempt=1)  # fmt: skip
        h.audit.append(replace(claim, job=job, pk=job))


def q13(h: History) -> None:
    one, two, three, *_ = lanes(h, "a", "a", "a", "b")
    claims(h, one, two, three)


def q13_priority(h: History) -> None:
    one, two = lanes(h, "a", "a")
    h.rows[two]["priority"] = 5
    claims(h, one, two)


def q13_id(h: History) -> None:
    one, two, three = lanes(h, "a", "a", "b")
    claims(h, two, three, one)


def q14(h: History) -> None:
    jobs = lanes(h, "a", "a", "a")
    for job in jobs:
        item = {"m": f"m{job}", "payload": {"m": f"m{job}"}, "org": "a", "max_depth": 2}
        h.rows[job]["payload"] = item["payload"]
        call = {"f": "enqueue", "proc": "c", "call": f"c-{job}", "key": None}
        h.client += [
            {**call, "t": job, "type": "invoke", "value": item},
            {**call, "t": job + 0.5, "type": "ok", "id": job},
        ]


def walked(h: History, *ids: int, scope: Any = None) -> None:
    call = {"f": "walk", "proc": "c", "call": "w-1", "key": None, "t": 0.0}
    walk = {"ids": list(ids), "began": 9.5, "first": 9.6, "ended": 20.0}
    h.lag = 0.1
    h.client += [
        {**call, "type": "invoke", "value": scope or {}},
        {**call, "type": "ok", "id": walk},
    ]


def q17(h: History) -> None:
    walked(h, 7, 7)


def q17_missing(h: History) -> None:
    walked(h)


def q17_new(h: History) -> None:
    h.audit[0] = replace(h.audit[0], db=9.7)
    walked(h, 7)


def q17_other(h: History) -> None:
    walked(h, 7, scope={"org": "a"})


def q15(h: History) -> None:
    h.effects[3]["max_hold"] = 0.1
    h.slack = -1.0


def q15_outcome(h: History) -> None:
    h.effects[3]["max_hold"] = 0.1
    h.effects.insert(4, effect("revoked", B, 3.2, 0, why="timeout"))


def q16(h: History) -> None:
    h.effects.append(effect("revoked", A, 12.0, 0, why="lease-lost"))


def q18(h: History) -> None:
    h.bound, h.slack = 0.1, 0.1


def q18_open(h: History) -> None:
    h.audit.pop()


def q19(h: History) -> None:
    h.rows[7] |= {
        "payload": {"m": "x", "do": "die", "always": True}, "max_attempts": 5, "error_class": ""
    }  # fmt: skip


def q19_other(h: History) -> None:
    h.rows[7] |= {"payload": {"m": "x", "do": "end"}, "state": "dead"}


def q20(h: History) -> None:
    without(h, e="final")


def q20_twice(h: History) -> None:
    h.effects.append(h.effects[-1])


@pytest.mark.row("reliability", "2")
@pytest.mark.parametrize(
    "breach",
    [
        q1, q2, q3, q4, q5, q6, q6_token, q7, q8, q8_most, q9, q10, q10_state, q11, q12, q13,
        q13_priority, q13_id, q14, q15, q15_outcome, q16, q17, q17_missing, q17_new, q17_other, q18,
        q18_open, q19, q19_other, q20, q20_twice,
    ],
    ids=lambda breach: breach.__name__,
)  # fmt: skip
def test_a_breach_turns_its_checker_red(breach: Any) -> None:
    history = zombie()
    breach(history)
    assert breach.__name__.split("_")[0].upper() in check_all(history).red


def test_an_enqueue_of_unknown_outcome_may_have_run_and_is_counted() -> None:
    history = zombie()
    history.client[1] = {**history.client[1], "type": "info"}
    report = check_all(history)
    report.assert_green()
    assert report.counts["unknown that ran"] == 1


def q13_of(h: History) -> set[str]:
    return {violation.rule for violation in check_all(h).violations} & {"Q13"}


def test_lanes_that_take_turns_and_jobs_in_their_order_are_green() -> None:
    history = zombie()
    a1, b1, a2, b2, a3 = lanes(history, "a", "b", "a", "b", "a")
    history.rows[a2]["priority"] = 5
    claims(history, a2, b1, a1, b2, a3)
    assert q13_of(history) == set()


def test_a_lane_that_is_come_to_twice_before_a_look_that_had_begun_is_forgiven() -> None:
    history = zombie()
    a1, a2, b = lanes(history, "a", "a", "b")
    claims(history, a1, a2, b)
    assert q13_of(history) == set()


def test_a_lane_that_has_just_begun_to_wait_is_not_overdue() -> None:
    history = zombie()
    *many, _ = lanes(history, "a", "a", "a", "a", "b")
    claims(history, *many)
    history.audit[4] = replace(history.audit[4], db=29.5, seq=102)
    history.audit.sort(key=lambda c: (c.db, c.seq))
    assert q13_of(history) == set()


def test_a_frozen_worker_says_nothing_about_turns() -> None:
    history = zombie()
    q13(history)
    history.stopped = {"a"}
    assert q13_of(history) == set()


def test_callers_at_once_may_exceed_a_depth_where_the_database_cannot_lock_a_lane() -> None:
    history = zombie()
    q14(history)
    for record in history.client:
        record["t"] = {"invoke": 1.0, "ok": 2.0}[record["type"]]  # all at once
    assert "Q14" not in check_all(history).red
    history.vendor = "postgresql"
    assert "Q14" in check_all(history).red


def test_a_depth_that_not_all_callers_give_is_nobodys_promise() -> None:
    history = zombie()
    q14(history)
    del history.client[0]["value"]["max_depth"]
    assert "Q14" not in check_all(history).red


def test_a_walk_may_or_may_not_show_what_was_committed_or_deleted_meanwhile() -> None:
    for ids in ((), (7,)):
        history = zombie()
        history.audit[0] = replace(history.audit[0], db=9.45)
        walked(history, *ids)
        assert "Q17" not in check_all(history).red
