"""The plans of the worker's statements at 50,000 rows, evenly and unevenly spread (C52, C53).

Each statement is taken from a real call of the store inside a transaction that is rolled back, and
explained on the same rows: on PostgreSQL with its values and as a generic plan, under the planner
switches of the pass and without them.
"""

import json
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction

from gnl_django.core import leases
from gnl_django.core.leases import Lease
from gnl_django.queue.listing import WINDOW
from gnl_django.queue.models import Job
from gnl_django.queue.store import counts, pruning, walk
from gnl_django.queue.store.backlog import backlog
from gnl_django.queue.store.postgresql_sql import PLANNER
from tests.conformance import support_claim as s
from tests.support import vendor
from tests.tables import empty_tables

ROWS = 50_000
#: Arithmetic over n = 0 .. 49,999 that gives the number of the lane.
SPREADS = {
    "one lane": "0",
    "four lanes, skewed": "CASE WHEN n < 45000 THEN 0 WHEN n < 49000 THEN 1 ELSE 2 + n % 2 END",
    "1,000 lanes": "n % 1000",
}
TABLE = "gnl_django_job"
PRIMARY = {"postgresql": "gnl_django_job_pkey", "mysql": "PRIMARY", "sqlite": "PRIMARY KEY"}
#: Rows that the same statement has found before, and locked.
BY_PLACE = "Tid Scan"
Statement = tuple[str, Any]

pytestmark = pytest.mark.row("queue", "C52", "C53")


@pytest.fixture(scope="module", params=list(SPREADS))
def full_table(
    request: pytest.FixtureRequest, django_db_setup: None, django_db_blocker: Any
) -> Iterator[str]:
    """Fill the table for the tests of this module: 50,000 ready rows in lanes, and others."""
    lane = SPREADS[request.param]
    with django_db_blocker.unblock():
        empty_tables()
        s.fill(ROWS, "ready", lane=lane)
        s.fill(ROWS, "scheduled", lane=lane, ahead="3600 + n")
        s.fill(5_000, "running", lane=lane, ahead="3600 + n")
        s.fill(5_000, "succeeded", lane=lane)
        s.fill(2_000, "dead", lane=lane)
        s.analyze()
        yield request.param
        empty_tables()


@pytest.fixture
def explained(full_table: str, db: None) -> None:
    """Say that a test reads the full table."""


def statements_of(act: Callable[[], object]) -> list[Statement]:
    """Return the statements (text, parameters) that `act` sends; what it does is undone."""
    seen: list[Statement] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if not re.match(r"SAVEPOINT|RELEASE|ROLLBACK", sql):
            seen.append((sql, params))
        return execute(sql, params, many, context)

    with transaction.atomic():
        with connection.execute_wrapper(note):
            act()
        transaction.set_rollback(True)
    return seen


# PostgreSQL


def postgres_plans(statement: Statement, *, switches: bool) -> Iterator[dict[str, Any]]:
    """Return the plan of a statement with its values and as a generic plan, both executed."""
    text, params = statement
    for generic in (False, True):
        with transaction.atomic(), connection.cursor() as cursor:
            if switches:
                cursor.execute(PLANNER)
            if generic:
                cursor.execute("SELECT set_config('plan_cache_mode','force_generic_plan',true)")
                run, values = prepare(cursor, text, params)
            else:
                run, values = text, params
            cursor.execute(f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {run}", values)
            (found,) = cursor.fetchone()
            yield (found if isinstance(found, list) else json.loads(found))[0]["Plan"]
            if generic:
                cursor.execute("DEALLOCATE explained")
            transaction.set_rollback(True)


def prepare(cursor: Any, text: str, params: dict[str, Any]) -> Statement:
    """Prepare a statement as `explained`; return the EXECUTE and its values."""
    numbers: dict[str, int] = {}

    def number(match: re.Match[str]) -> str:
        return f"${numbers.setdefault(match[1], len(numbers) + 1)}"

    numbered = re.sub(r"%\((\w+)\)s", number, text).replace("%%", "%")
    cursor.execute(f"PREPARE explained AS {numbered}")
    marks = ", ".join(["%s"] * len(numbers))
    return f"EXECUTE explained{f'({marks})' if marks else ''}", [params[name] for name in numbers]


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Walk a plan."""
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


def reads(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the nodes that read Job."""
    return [
        node
        for node in nodes(plan)
        if node.get("Relation Name") == TABLE and node["Node Type"] != "ModifyTable"
    ]


def rows_read(node: dict[str, Any]) -> int:
    """Return the rows that a node has looked at, over all its loops."""
    removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
    return round((node["Actual Rows"] + removed) * node["Actual Loops"])


def sorts_of_a_lane(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the sorts that stand between an index of Job and the LIMIT above it."""

    def reads_below(node: dict[str, Any]) -> bool:
        if node["Node Type"] == "Limit" or node.get("Parent Relationship") == "InitPlan":
            return False
        if node.get("Index Name", "").startswith("gnl_job"):
            return True
        return any(reads_below(child) for child in node.get("Plans", []))

    return [
        node
        for node in nodes(plan)
        if "Sort" in node["Node Type"] and any(map(reads_below, node.get("Plans", [])))
    ]


def check_postgres(
    statement: Statement, allowed: set[str], most: int, *, may_sort: bool = False
) -> None:
    for switches in (True, False):
        for plan in postgres_plans(statement, switches=switches):
            shown = json.dumps(plan, indent=1)
            found = reads(plan)
            used = {node.get("Index Name", node["Node Type"]) for node in found}
            if may_sort and not switches:
                assert used <= {*allowed, "Bitmap Heap Scan"}, shown
                continue
            assert used <= allowed | {PRIMARY["postgresql"], BY_PLACE}, shown
            assert not sorts_of_a_lane(plan), shown
            assert sum(map(rows_read, found)) <= most, shown


# the others


def mysql_plan(statement: Statement) -> list[dict[str, Any]]:
    """Return the rows of EXPLAIN."""
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {statement[0]}", statement[1])
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def check_mysql(statement: Statement, allowed: set[str]) -> None:
    for row in mysql_plan(statement):
        if row["table"] not in {TABLE, "j"}:
            continue
        extra = row["Extra"] or ""
        if (row["key"] is None and "const table" in extra) or "Impossible" in extra:
            continue
        assert row["key"] in allowed | {PRIMARY["mysql"]}, row
        assert row["type"] not in {"ALL", "index"}, row
        assert "filesort" not in extra, row


def sqlite_plan(statement: Statement) -> list[str]:
    """Return the lines of EXPLAIN QUERY PLAN."""
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN QUERY PLAN {statement[0]}", statement[1])
        return [row[3] for row in cursor.fetchall()]


def check_sqlite(statement: Statement, allowed: set[str], temporary: int) -> None:
    lines = sqlite_plan(statement)
    shown = "\n".join(lines)
    for line in lines:
        if re.search(rf"\b({TABLE}|j)\b", line):
            index = re.search(r"INDEX (\w+)|INTEGER (PRIMARY KEY)", line)
            assert index is not None, shown
            assert (index[1] or index[2]) in allowed | {PRIMARY["sqlite"]}, shown
            # An index may be walked from its start only for the first entry.
            assert line.startswith("SEARCH") or statement[0].endswith("LIMIT 1"), shown
    # Only the picked lanes are sorted, never a lane's jobs.
    assert sum("TEMP B-TREE" in line for line in lines) <= temporary, shown


def check(
    act: Callable[[], object],
    *allowed: str,
    most: int,
    temporary: int = 0,
    may_sort: bool = False,
) -> list[Statement]:
    """Explain every statement that `act` sends: Job is read by `allowed` or by primary key.

    may_sort: without its switches, so in a caller's transaction, PostgreSQL may gather what the
    index gives and sort it where it believes that to be cheaper.
    """
    found = statements_of(act)
    assert found
    for statement in found:
        if vendor() == "postgresql":
            check_postgres(statement, set(allowed), most, may_sort=may_sort)
        elif vendor() == "mysql":
            check_mysql(statement, set(allowed))
        else:
            check_sqlite(statement, set(allowed), temporary)
    return found


# the statements


@pytest.mark.parametrize("n", [1, 10, 100])
@pytest.mark.parametrize("where", ["start", "middle", "end"])
def test_a_claim_reads_only_what_it_takes(explained: None, n: int, where: str) -> None:
    cursor = {"start": "", "middle": "lane-5", "end": "zzz"}[where]
    request = s.request(n, cursor=cursor, at_cursor=where == "start")
    taken: list[int] = []

    def claim() -> None:
        taken.append(len(s.store().claim(request).rows))

    # Looked at: a hop a lane and its end, the picked rows, and again to update and return them.
    check(claim, "gnl_job_ready", most=6 * n + 10, temporary=1)
    assert taken == [n]


@pytest.mark.row("studio", "C20")
@pytest.mark.parametrize("n", [1, 10])
@pytest.mark.parametrize("where", ["start", "end"])
def test_a_claim_hops_over_paused_lanes_and_reads_none_of_their_jobs(
    explained: None, n: int, where: str
) -> None:
    paused = ("lane-0", "lane-1", "lane-nobody")
    cursor = "" if where == "start" else "zzz"
    request = s.request(n, cursor=cursor, at_cursor=where == "start", paused=paused)
    seen: list[str] = []

    def claim() -> None:
        seen.extend(row.org for row in s.store().claim(request).rows)

    # Two more hops than without pauses, though one of the lanes may hold 50,000 jobs.
    check(claim, "gnl_job_ready", most=6 * n + 10 + 2 * len(paused), temporary=1)
    assert not set(seen) & set(paused)


@pytest.mark.parametrize("n", [1, 10])
def test_a_claim_of_an_empty_queue_reads_nothing(explained: None, n: int) -> None:
    check(
        lambda: s.store().claim(s.request(n, queue="empty")),
        "gnl_job_ready",
        most=0,
        temporary=1,
    )


@pytest.mark.postgres("passes of the others look before they lock anyway")
@pytest.mark.parametrize("queues", [("empty",), ("default", "empty")])
def test_an_idle_look_reads_one_entry_of_each_index(
    explained: None, queues: tuple[str, ...]
) -> None:
    found = check(
        lambda: s.store().look(queues, (s.KIND,)),
        *("gnl_job_ready", "gnl_job_due", "gnl_job_lease"),
        most=2,
    )
    assert len(found) == 1


def test_a_promote_with_nothing_due_looks_at_run_at_in_the_index(explained: None) -> None:
    found = check(lambda: s.store().promote(), "gnl_job_due", most=2)
    assert len(found) == 1
    if vendor() == "postgresql":
        assert_index_condition(found[0], "gnl_job_due", "run_at")


def test_a_promote_of_due_jobs_reads_only_those(explained: None) -> None:
    due = list(Job.objects.filter(state="scheduled").order_by("run_at").values_list("id")[:5])
    Job.objects.filter(id__in=[row[0] for row in due]).update(run_at=s.now("default"))
    found = check(lambda: s.store().promote(), "gnl_job_due", most=40)
    assert len(found) >= 1


def test_a_reap_with_nothing_expired_looks_at_the_lease_in_the_index(explained: None) -> None:
    found = check(lambda: s.store().reap(), "gnl_job_lease", most=0)
    assert len(found) == 1
    if vendor() == "postgresql":
        assert_index_condition(found[0], "gnl_job_lease", "lease_expires_at")


def test_a_reap_of_expired_leases_reads_only_those(explained: None) -> None:
    gone = list(Job.objects.filter(state="running").order_by("id").values_list("id")[:5])
    Job.objects.filter(id__in=[row[0] for row in gone]).update(lease_expires_at=s.now("default"))
    check(lambda: s.store().reap(), "gnl_job_lease", most=60)


def held(count: int) -> list[Lease]:
    """Return leases of running jobs."""
    rows = Job.objects.filter(state="running").order_by("id").values_list("id", "claim_token")
    return [Lease(job, token, good_at=0.0) for job, token in rows[:count]]


@pytest.mark.parametrize("count", [1, 10, 100])
def test_a_renewal_reads_its_rows_by_primary_key(explained: None, count: int) -> None:
    leases_ = held(count)
    check(lambda: s.store().renew(leases_, 30.0), most=6 * count)


@pytest.mark.parametrize("count", [1, 10, 100])
@pytest.mark.parametrize("outcome", ["success", "failure"])
def test_a_settle_reads_its_rows_by_primary_key(explained: None, count: int, outcome: str) -> None:
    def settle() -> None:
        make: Any = s.succeed if outcome == "success" else s.fail
        outcomes = [make(lease, lease.token) for lease in leases_]
        assert all(done.state for done in s.store().settle(outcomes))

    leases_ = held(count)
    check(settle, most=8 * count)


def test_a_stale_settle_and_renewal_read_by_primary_key(explained: None) -> None:
    stale = [Lease(lease.id, leases.new_token(), good_at=0.0) for lease in held(10)]
    check(lambda: s.store().renew(stale, 30.0), most=60)
    check(lambda: s.store().settle([s.fail(x, x.token) for x in stale]), most=80)  # type: ignore[arg-type]


def test_the_first_lane_of_a_worker_is_found_inside_the_ready_index(explained: None) -> None:
    (statement,) = statements_of(lambda: s.store().first_lane("default", (s.KIND,)))
    if vendor() == "postgresql":
        for plan in postgres_plans(statement, switches=True):
            assert [node["Index Name"] for node in reads(plan)] == ["gnl_job_ready"]
            assert all(node["Node Type"] == "Index Only Scan" for node in reads(plan))
    elif vendor() == "mysql":
        assert [row["key"] for row in mysql_plan(statement)] == ["gnl_job_ready"]
        assert "Using index" in mysql_plan(statement)[0]["Extra"]
    else:
        assert "INDEX gnl_job_ready (queue=?)" in sqlite_plan(statement)[0]


@pytest.mark.parametrize("most", [100, 100_000])
def test_the_backlog_is_counted_inside_the_ready_index(explained: None, most: int) -> None:
    (statement,) = statements_of(lambda: backlog(s.store(), most=most))
    if vendor() == "postgresql":
        for plan in postgres_plans(statement, switches=True):
            (read,) = reads(plan)
            assert (read["Node Type"], read["Index Name"]) == ("Index Only Scan", "gnl_job_ready")
            assert rows_read(read) == min(most, ROWS)
    elif vendor() == "mysql":
        (row,) = [row for row in mysql_plan(statement) if row["table"] == TABLE]
        assert (row["key"], row["type"]) == ("gnl_job_ready", "ref")
        assert "Using index" in row["Extra"]
        assert "filesort" not in row["Extra"]
    else:
        lines = [line for line in sqlite_plan(statement) if TABLE in line]
        assert lines == [f"SCAN {TABLE} USING INDEX gnl_job_ready"]


@pytest.mark.row("queue", "C122", "C123")
@pytest.mark.parametrize("org", ["", "lane-0", "lane-5", "zzz"])
@pytest.mark.parametrize("part", ["one org", "the orgs behind it"])
def test_a_list_walks_the_index_of_org_and_id(explained: None, org: str, part: str) -> None:
    bound = walk.newest(s.store())
    assert bound is not None
    stretch = walk.Stretch(org, 0 if part == "one org" else None, bound)

    def page(**filters: str) -> None:
        walk.jobs(s.store(), stretch, filters, window=WINDOW, limit=51)

    check(page, "gnl_job_org", most=51, may_sort=True)
    # No job has this state, so the whole window is looked at and no more.
    # (SQLite does not see that the window comes in order; it sorts what meets the filter.)
    check(lambda: page(state="canceled"), "gnl_job_org", most=WINDOW, temporary=1, may_sort=True)
    edge = partial(walk.edge, s.store(), stretch, window=WINDOW)
    check(edge, "gnl_job_org", most=WINDOW + 1, may_sort=True)


@pytest.mark.row("queue", "C120")
@pytest.mark.parametrize("behind", [False, True])
def test_prune_finds_dead_jobs_by_their_index(explained: None, behind: bool) -> None:
    moment = s.now("default")
    cutoffs = pruning.Cutoffs(None, None, moment)
    place = (moment - timedelta(seconds=1_500), 1) if behind else None
    # 2,000 dead jobs: nothing else is looked at.
    look = partial(pruning.look_at_dead, s.store(), cutoffs, place)
    check(look, "gnl_job_dead", most=2_000, may_sort=True)
    assert len(look().ids) == pruning.BATCH


@pytest.mark.row("queue", "C120")
def test_prune_walks_finished_jobs_by_primary_key(explained: None) -> None:
    old = s.now("default") - timedelta(days=1)
    cutoffs = pruning.Cutoffs(old, old, None)
    for place in (0, 60_000):
        check(
            partial(pruning.look_at_finished, s.store(), cutoffs, place),
            most=pruning.BATCH,
        )


@pytest.mark.parametrize(
    ("count", "state", "index"),
    [
        (counts.waiting, "ready", "gnl_job_ready"),
        (counts.waiting, "scheduled", "gnl_job_sched_lane"),
        (counts.by_queue, "running", "gnl_job_lease"),
        (counts.by_queue, "dead", "gnl_job_dead"),
    ],
)
def test_the_numbers_of_the_queues_are_counted_through_the_states_index(
    explained: None, count: Callable[..., object], state: str, index: str
) -> None:
    for statement in statements_of(lambda: count(s.store(), state)):
        if vendor() == "postgresql":
            for plan in postgres_plans(statement, switches=True):
                assert {node.get("Index Name") for node in reads(plan)} == {index}
        elif vendor() == "mysql":
            check_mysql(statement, {index, "gnl_job_ready"})
        else:
            lines = [line for line in sqlite_plan(statement) if TABLE in line]
            assert all(f"INDEX {index}" in line for line in lines), lines


def assert_index_condition(statement: Statement, index: str, column: str) -> None:
    """Assert that every read through `index` bounds `column` inside the index."""
    for plan in postgres_plans(statement, switches=True):
        found = [node for node in reads(plan) if node.get("Index Name") == index]
        assert found
        for node in found:
            assert column in node["Index Cond"]
            assert column not in node.get("Filter", "")
