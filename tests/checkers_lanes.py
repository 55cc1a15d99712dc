"""The invariants of lanes, depths and lists: Q13, Q14 and Q17 of reliability.md 2.3.

Each replays the audit once, with the row's queue, org and priority beside it. Two things of Q13
leave no trace in a history and have tests of their own: that enqueue_many gives lanes as single
enqueues do (F5), and that nobody sees an empty queue beside a job he could have (F7).
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from tests.history import Change, History, marks_of
from tests.violations import FINAL, JOB, TINY, Violation, invoked_marks, payload_of

Lane = tuple[str, str]
#: How often a worker may come to one lane while another waits: once for its place in the ring, once
#: for a look that had begun before. With faults a killed holder's locks hide rows for a moment.
TURNS, TURNS_WITH_FAULTS = 2, 4


def lane_of(h: History, job: int) -> Lane | None:
    """Return queue and org of a job, None when its row is gone."""
    row = h.rows.get(job)
    return None if row is None else (row["queue"], row["org"])


def job_changes(h: History) -> Iterator[tuple[Change, Lane]]:
    """Yield the changes of jobs whose rows are there, in their order."""
    for change in h.audit:
        if change.table == JOB and (lane := lane_of(h, change.job)) is not None:
            yield change, lane


@dataclass
class Waiting:
    """The ready jobs of one lane: since when, and in the order in which they are due."""

    since: dict[int, float] = field(default_factory=dict)
    order: list[tuple[int, int]] = field(default_factory=list)
    #: When the lane last began to wait, or was last served.
    at: float = 0.0

    def add(self, job: int, priority: int, at: float) -> None:
        """Note that a job has become ready."""
        if not self.since:
            self.at = at
        self.since[job] = at
        heappush(self.order, (-priority, job))

    def first(self) -> tuple[int, int] | None:
        """Return the key of the job that is due first."""
        while self.order and self.order[0][1] not in self.since:
            heappop(self.order)
        return self.order[0] if self.order else None


def check_q13(h: History) -> list[Violation]:
    """Lanes take turns (F1, F2); inside a lane priority decides, then the id (F3)."""
    if h.stopped:  # a frozen claim hides the rows it has locked for as long as it likes
        return []
    fairness = _Fairness(h)
    for change, lane in job_changes(h):
        fairness.take(change, lane)
    return fairness.found + fairness.never_taken()


class _Fairness:
    """The lanes of a history as they fill and are served."""

    def __init__(self, h: History) -> None:
        self._h = h
        self._turns = TURNS_WITH_FAULTS if h.faulted else TURNS
        self._workers = {record["token"]: record["proc"] for record in h.told("start")}
        self._batches: dict[str, list[tuple[int, Lane]]] = defaultdict(list)
        for change, lane in job_changes(h):
            if change.new_state == "running" and change.old_state == "ready":
                self._batches[str(change.new_token)].append((change.job, lane))
        self._lanes: dict[Lane, Waiting] = defaultdict(Waiting)
        self._visits: dict[tuple[str, Lane], deque[float]] = defaultdict(
            lambda: deque(maxlen=self._turns + 1)
        )
        #: Jobs that were passed over, and when.
        self._passed: dict[int, float] = {}
        self.found: list[Violation] = []

    def take(self, change: Change, lane: Lane) -> None:
        """Go on by one change."""
        waiting = self._lanes[lane]
        if change.new_state == "ready" and change.old_state != "ready":
            waiting.add(change.job, self._h.rows[change.job]["priority"], change.db)
        elif change.new_state == "running" and change.old_state == "ready":
            batch = self._batches.pop(str(change.new_token), None)
            if batch is not None:  # the whole claim at its first row
                self._claim(str(change.new_token), batch, change.db)
        elif change.old_state == "ready" and change.new_state != "ready":
            waiting.since.pop(change.job, None)
            self._left(change.job, change.db)

    def _claim(self, token: str, batch: list[tuple[int, Lane]], at: float) -> None:
        jobs: dict[Lane, list[int]] = defaultdict(list)
        for job, lane in batch:
            jobs[lane].append(job)
        for lane, taken in jobs.items():
            for job in taken:
                self._lanes[lane].since.pop(job, None)
                self._left(job, at)
            self._look_at_order(lane, taken, at)
        if token in self._workers:
            self._look_at_turns(self._workers[token], set(jobs), at)
        for lane in jobs:
            self._lanes[lane].at = at

    def _look_at_turns(self, worker: str, served: set[Lane], at: float) -> None:
        earliest: tuple[float, Lane] | None = None
        for lane in served:
            visits = self._visits[worker, lane]
            visits.append(at)
            if len(visits) > self._turns and (earliest is None or visits[0] > earliest[0]):
                earliest = visits[0], lane
        if earliest is None:
            return
        since, favourite = earliest
        for lane, waiting in self._lanes.items():
            waits = lane[0] == favourite[0] and lane not in served and waiting.since
            if waits and since > waiting.at + self._h.lag:
                text = f"{worker} came {self._turns + 1} times to {favourite}, {lane} waited"
                self.found.append(Violation("Q13", text, tuple(waiting.since)[:10]))

    def _look_at_order(self, lane: Lane, taken: list[int], at: float) -> None:
        waiting = self._lanes[lane]
        first = waiting.first()
        last = max((-self._h.rows[job]["priority"], job) for job in taken)
        if first is not None and first < last and waiting.since[first[1]] + self._h.lag <= at:
            self._passed.setdefault(first[1], at)

    def _left(self, job: int, at: float) -> None:
        passed = self._passed.pop(job, None)
        if passed is not None and at - passed >= self._h.lag:
            self.found.append(Violation("Q13", "was passed over inside its lane", (job,)))

    def never_taken(self) -> list[Violation]:
        """Return what was passed over and is waiting still."""
        end = max((change.db for change in self._h.audit), default=0.0)
        return [
            Violation("Q13", "was passed over and waits still", (job,))
            for job, at in self._passed.items()
            if end - at >= self._h.lag
        ]


def check_q14(h: History) -> list[Violation]:
    """A lane whose callers all give max_depth never holds more: on PostgreSQL to the job.

    Elsewhere callers at the same time may exceed it by what each of the others brings.
    """
    depths = {mark["m"]: mark.get("max_depth") for _, mark in invoked_marks(h)}
    limit = {job: depths.get(payload_of(row).get("m")) for job, row in h.rows.items()}
    revived = {job for job, row in h.rows.items() if row.get("revivals")}
    free = {lane_of(h, job) for job, depth in limit.items() if depth is None} | {
        lane_of(h, job) for job in revived
    }
    room = Counter[Lane]() if h.vendor == "postgresql" else _room(h)
    unfinished: Counter[Lane] = Counter()
    found = []
    for change, lane in job_changes(h):
        was, is_ = (
            state in FINAL or state is None for state in (change.old_state, change.new_state)
        )
        unfinished[lane] += int(was and not is_) - int(is_ and not was)
        depth = limit[change.job]
        if change.op != "INSERT" or lane in free or depth is None:
            continue
        if unfinished[lane] > depth + room[lane]:
            text = f"{lane} holds {unfinished[lane]} jobs, {depth} allowed"
            found.append(Violation("Q14", text, (change.job,)))
    return found


def _room(h: History) -> Counter[Lane]:
    """Return by lane what callers at the same time may bring beyond the limit."""
    ends = {record["call"]: record["t"] for record in h.client if record["type"] != "invoke"}
    moments: dict[Lane, list[tuple[float, int]]] = defaultdict(list)
    batch: Counter[Lane] = Counter()
    for record in h.client:
        if record["type"] != "invoke" or not record["f"].startswith("enqueue"):
            continue
        lanes = Counter(
            (mark.get("queue") or "default", mark.get("org") or "")
            for mark in marks_of(record["value"])
        )
        for lane, size in lanes.items():
            batch[lane] = max(batch[lane], size)
            moments[lane].append((record["t"], 1))
            moments[lane].append((ends.get(record["call"], float("inf")), -1))
    return Counter({lane: (_most_at_once(moments[lane]) - 1) * batch[lane] for lane in batch})


def _most_at_once(moments: Iterable[tuple[float, int]]) -> int:
    at_once = most = 0
    for _, step in sorted(moments, key=lambda moment: (moment[0], -moment[1])):
        at_once += step
        most = max(most, at_once)
    return most


def check_q17(h: History) -> list[Violation]:
    """A walk shows what is there from its first page to its last once, and nothing newer."""
    made = {c.job: c.db for c in h.audit if c.table == JOB and c.op == "INSERT"}
    deleted = {c.job: c.db for c in h.audit if c.table == JOB and c.op == "DELETE"}
    scopes = {r["call"]: r["value"] for r in h.client if r["f"] == "walk" and r["type"] == "invoke"}
    found = []
    for record in h.client:
        if record["f"] == "walk" and record["type"] == "ok":
            there = {job for job in made if _in_scope(h, job, scopes[record["call"]])}
            found += _look_at_walk(record["id"], made, deleted, there, h.lag)
    return found


def _in_scope(h: History, job: int, scope: dict[str, Any]) -> bool:
    lane = lane_of(h, job)
    return lane is None or "org" not in scope or lane[1] == (scope["org"] or "")


def _look_at_walk(
    walk: dict[str, Any],
    made: dict[int, float],
    deleted: dict[int, float],
    there: set[int],
    lag: float,
) -> list[Violation]:
    seen = Counter(walk["ids"])
    all_along = {
        job
        for job in there
        if made[job] + lag < walk["began"] and deleted.get(job, float("inf")) > walk["ended"]
    }
    broken = {
        "appear twice": sorted(job for job, times in seen.items() if times > 1),
        "are missing": sorted(all_along - seen.keys()),
        "came after the walk had begun": sorted(
            job for job in seen if made.get(job, 0.0) > walk["first"] + TINY
        ),
        "are of another list": sorted(seen.keys() & made.keys() - there),
    }
    return [
        Violation("Q17", f"{len(jobs)} jobs of a walk {what}", tuple(jobs))
        for what, jobs in broken.items()
        if jobs
    ]
