"""Enqueue: what is stored, what is refused, and that a refusal leaves nothing behind."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connection, transaction
from django.utils.connection import ConnectionDoesNotExist

from gnl_django import InvalidPayload, JobContext, JobKind, UnknownKind, cancel_job, enqueue
from gnl_django.core import clock, wakeup
from gnl_django.errors import ExecutionRevoked
from gnl_django.models import Job
from tests.conformance.conftest import NOON, Declare, MakeWorker
from tests.conformance.helpers import DEADLINE, Badge, Order, job_of, state_of, statements

pytestmark = pytest.mark.django_db

MIB = 1_048_576


def nested(depth: int) -> Any:
    """Return lists inside each other, `depth` of them."""
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


def paths(error: pytest.ExceptionInfo[InvalidPayload]) -> list[str]:
    return [issue.path for issue in error.value.issues]


@pytest.fixture
def wakes() -> Iterator[list[str]]:
    """Note each wake-up of the queue `default` in this process."""
    seen: list[str] = []

    def woken() -> None:
        seen.append("default")

    wakeup.subscribe("jobs", ["default"], woken)
    yield seen
    wakeup.unsubscribe(woken)


@contextmanager
def nothing_stored() -> Iterator[None]:
    before = Job.objects.count()
    yield
    assert Job.objects.count() == before


@pytest.mark.django_db(transaction=True)
@pytest.mark.row("queue", "C01")
def test_a_plain_job_takes_one_statement_and_is_ready(kind: JobKind[Any]) -> None:
    with statements() as texts:
        job_id = kind.enqueue({"a": 1})
    # The notification of other processes comes after the commit, and not for every job (R8).
    assert [text.split()[0] for text in texts if "pg_notify" not in text] == ["INSERT"]
    job = job_of(job_id)
    assert (job.state, job.kind, job.payload) == ("ready", "t.plain", {"a": 1})


def test_a_new_row_holds_the_defaults_of_the_table(kind: JobKind[Any]) -> None:
    with clock.override(NOON):
        job = job_of(enqueue("t.plain"))
    assert {name: getattr(job, name) for name in ("queue", "org", "priority", "payload")} == {
        "queue": "default",
        "org": "",
        "priority": 0,
        "payload": None,
    }
    assert (job.attempt, job.max_attempts, job.revivals, job.deferrals) == (0, 5, 0, 0)
    assert (job.meta, job.key, job.dedup, job.run_id, job.sensitive) == (
        {},
        None,
        None,
        None,
        False,
    )
    assert (job.run_at, job.enqueued_at) == (NOON, NOON)
    assert (job.started_at, job.finished_at, job.claim_token, job.worker) == (None,) * 4
    assert (job.note, job.error_class, job.error, job.error_key) == ("", "", "", None)


@pytest.mark.django_db(transaction=True)
@pytest.mark.row("queue", "C02")
def test_a_rolled_back_enqueue_leaves_no_row_and_wakes_nobody(
    kind: JobKind[Any], wakes: list[str]
) -> None:
    with transaction.atomic():
        kind.enqueue()
        transaction.set_rollback(True)
    with transaction.atomic():
        with transaction.atomic():
            kind.enqueue()
            transaction.set_rollback(True)
        kind.enqueue_many([])
    assert not Job.objects.exists()
    assert wakes == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.row("queue", "C02")
def test_a_worker_of_this_process_is_woken_at_commit_and_not_before(
    kind: JobKind[Any], wakes: list[str]
) -> None:
    with transaction.atomic():
        kind.enqueue()
        assert wakes == []
    assert wakes == ["default"]


@pytest.mark.row("queue", "C03")
@pytest.mark.parametrize("name", ["t.nobody", "", "x" * 200, "\0"])
def test_an_unknown_kind_is_refused(name: str) -> None:
    with nothing_stored(), pytest.raises(UnknownKind, match="no handler registered"):
        enqueue(name, {})


@pytest.mark.row("queue", "C03")
@pytest.mark.parametrize("name", [None, 5, b"t.plain"])
def test_what_is_neither_a_name_nor_a_kind_is_refused(name: Any) -> None:
    with nothing_stored(), pytest.raises((UnknownKind, TypeError)):
        enqueue(name, {})


@pytest.mark.row("queue", "C04")
@pytest.mark.parametrize(
    ("payload", "path"),
    [
        ({"lines": []}, "/number"),
        (
            {"number": 1, "lines": [{"article": "a", "count": 1}, {"article": "b"}]},
            "/lines/1/count",
        ),
        ({"number": "many"}, "/number"),
        (None, "/"),
        ("text", "/"),
    ],
)
def test_a_payload_that_does_not_fit_its_type_is_refused_with_the_path(
    declare: Declare, payload: Any, path: str
) -> None:
    def ship(payload: Order) -> None:
        """Never called."""

    kind = declare("t.ship", ship)
    with nothing_stored(), pytest.raises(InvalidPayload) as error:
        kind.enqueue(payload)
    assert paths(error) == [path]
    assert error.value.kind == "t.ship"


@pytest.mark.row("queue", "C05")
@pytest.mark.parametrize(
    ("payload", "path"),
    [
        pytest.param({"a": ["x", {"b": "nul\0"}]}, "/a/1/b", id="NUL"),
        pytest.param("\0", "/", id="NUL at the root"),
        pytest.param({"a": "\ud800"}, "/a", id="lone surrogate"),
        pytest.param({"\udfff": 1}, "/?", id="lone surrogate in a key"),
        pytest.param({"a\0": 1}, "/a?", id="NUL in a key"),
        pytest.param([1, math.nan], "/1", id="NaN"),
        pytest.param({"a": math.inf}, "/a", id="Infinity"),
        pytest.param({"a": -math.inf}, "/a", id="-Infinity"),
        pytest.param({"a": 2**63}, "/a", id="2^63"),
        pytest.param({"a": -(2**63)}, "/a", id="-2^63"),
        pytest.param({"a": {1: "x"}}, "/a/1", id="int key"),
        pytest.param({"a": {None: "x"}}, "/a/None", id="None key"),
        pytest.param({"a": {True: "x"}}, "/a/True", id="bool key"),
        pytest.param(nested(33), "/0" * 32, id="depth 33"),
        pytest.param("x" * (MIB - 1), "/", id="1 MiB + 1 byte"),
        pytest.param("ü" * (MIB // 2), "/", id="1 MiB + 2 bytes of two-byte characters"),
        pytest.param({"a": {1, 2}}, "/a", id="set"),
        pytest.param({"a": b"x"}, "/a", id="bytes"),
        pytest.param({"a": NOON}, "/a", id="datetime"),
    ],
)
@pytest.mark.parametrize("annotated", [False, True])
def test_a_payload_that_no_database_could_hold_is_refused_with_the_path(
    declare: Declare, payload: Any, path: str, annotated: bool
) -> None:
    def untyped(payload: Any) -> None:
        """Never called."""

    def mapping(payload: dict) -> None:  # type: ignore[type-arg]
        """Never called."""

    kind = declare("t.any", mapping if annotated else untyped)
    with nothing_stored(), pytest.raises(InvalidPayload) as error:
        kind.enqueue(payload)
    assert paths(error) == [path]


@pytest.mark.row("queue", "C05")
@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(nested(32), id="depth 32"),
        pytest.param("x" * (MIB - 2), id="1 MiB"),
        pytest.param("ü" * (MIB // 2 - 1), id="1 MiB of two-byte characters"),
        pytest.param([2**63 - 1, -(2**63) + 1], id="64-bit limits"),
        pytest.param({"a": 1.0, "b": 1, "ä": [True, None, -0.5, 1e300]}, id="number forms"),
        pytest.param("😀 \t\n'\"\\%s {}", id="what texts may hold"),
        pytest.param(None, id="nothing"),
        pytest.param(False, id="false"),
        pytest.param("", id="empty text"),
    ],
)
def test_a_payload_at_the_limits_reaches_the_handler_unchanged(
    declare: Declare, make_worker: MakeWorker, payload: Any
) -> None:
    seen = []
    kind = declare("t.any", lambda payload: seen.append(payload))
    job_id = kind.enqueue(payload)
    assert make_worker().run_once() == 1
    assert state_of(job_id) == "succeeded"
    assert seen == [payload]
    assert repr(seen[0]) == repr(payload)  # 1 is not 1.0, and 1 is not True


@pytest.mark.row("queue", "C05")
def test_a_payload_is_stored_as_canonical_json(kind: JobKind[Any]) -> None:
    job_id = kind.enqueue({"b": [1, 1.0], "a": {"ü": None}})
    with connection.cursor() as cursor:
        cursor.execute("SELECT payload FROM gnl_django_job WHERE id = %s", [job_id])
        assert cursor.fetchone()[0] == '{"a":{"ü":null},"b":[1,1.0]}'


@pytest.mark.row("queue", "C05")
def test_each_fault_of_a_payload_is_named(kind: JobKind[Any]) -> None:
    with pytest.raises(InvalidPayload) as error:
        kind.enqueue({"a": math.nan, "b": ["\0", {2: 2**70}]})
    assert paths(error) == ["/a", "/b/0", "/b/1/2", "/b/1/2"]


@pytest.mark.row("queue", "C05")
def test_the_limits_hold_for_typed_payloads_too(declare: Declare) -> None:
    def typed(payload: dict[str, Any]) -> None:
        """Never called."""

    kind = declare("t.typed", typed)
    for payload, path in [
        ({"a": math.nan}, "/a"),
        ({"a": "\ud800"}, "/a"),
        ({"a": nested(32)}, "/a" + "/0" * 31),
        ({"a": "x" * MIB}, "/"),
    ]:
        with nothing_stored(), pytest.raises(InvalidPayload) as error:
            kind.enqueue(payload)
        assert paths(error) == [path]
    assert job_of(kind.enqueue({"a": nested(31)})).payload == {"a": nested(31)}


@pytest.mark.row("queue", "C06")
def test_a_uuid_is_stored_as_text_and_arrives_as_a_uuid(
    declare: Declare, make_worker: MakeWorker
) -> None:
    seen = []

    def admit(payload: Badge) -> None:
        seen.append(payload.badge)

    kind = declare("t.admit", admit)
    text = "0f8fad5b-d9cb-469f-a165-70867728950e"
    ids = [kind.enqueue(given) for given in ({"badge": text}, Badge(badge=UUID(text)))]
    assert [job_of(job_id).payload for job_id in ids] == [{"badge": text}] * 2
    with nothing_stored(), pytest.raises(InvalidPayload) as error:
        kind.enqueue({"badge": "nonsense"})
    assert paths(error) == ["/badge"]
    make_worker().run_until_idle()
    assert seen == [UUID(text)] * 2


@pytest.mark.row("queue", "C07")
def test_a_job_runs_from_its_time_on_and_not_before(
    kind: JobKind[Any], make_worker: MakeWorker, frozen: clock.Override
) -> None:
    job_id = kind.enqueue(run_at=NOON + timedelta(hours=1))
    worker = make_worker()
    assert state_of(job_id) == "scheduled"
    assert worker.run_once() == 0
    frozen.set(NOON + timedelta(hours=1, milliseconds=-1))
    assert worker.run_once() == 0
    frozen.set(NOON + timedelta(hours=1))
    assert worker.run_once() == 1
    assert state_of(job_id) == "succeeded"


@pytest.mark.row("queue", "C07", "C08")
@pytest.mark.parametrize(
    ("options", "state", "run_at"),
    [
        ({"delay": 0}, "ready", NOON),
        ({"delay": timedelta(0)}, "ready", NOON),
        ({"run_at": NOON}, "ready", NOON),
        ({"run_at": NOON - timedelta(days=900)}, "ready", NOON - timedelta(days=900)),
        ({"delay": 0.25}, "scheduled", NOON + timedelta(seconds=0.25)),
        ({"delay": timedelta(hours=2)}, "scheduled", NOON + timedelta(hours=2)),
        (
            {"run_at": datetime(2031, 5, 7, 17, 30, tzinfo=timezone(timedelta(hours=5)))},
            "scheduled",
            NOON + timedelta(minutes=30),
        ),
        (
            {"run_at": NOON + timedelta(microseconds=1)},
            "scheduled",
            NOON + timedelta(microseconds=1),
        ),
    ],
)
@pytest.mark.usefixtures("frozen")
def test_the_databases_clock_decides_the_state_of_a_new_job(
    kind: JobKind[Any], options: dict[str, Any], state: str, run_at: datetime
) -> None:
    job = job_of(kind.enqueue(**options))
    assert (job.state, job.run_at) == (state, run_at)


@pytest.mark.row("queue", "C08")
@pytest.mark.parametrize(
    "options",
    [
        {"delay": -1},
        {"delay": timedelta(microseconds=-1)},
        {"delay": math.nan},
        {"delay": math.inf},
        {"run_at": datetime(2031, 5, 7)},  # noqa: DTZ001 - the fault looked for
        {"run_at": NOON, "delay": 1},
        {"run_at": NOON, "delay": 0},
    ],
)
def test_a_wrong_time_is_refused(kind: JobKind[Any], options: dict[str, Any]) -> None:
    with nothing_stored(), pytest.raises(ValueError, match=r"run_at|delay"):
        kind.enqueue(**options)


@pytest.mark.parametrize(
    "run_at",
    [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)],
    ids=["first", "last"],
)
def test_the_ends_of_the_calendar_can_be_stored_and_read(
    kind: JobKind[Any], run_at: datetime
) -> None:
    assert job_of(kind.enqueue(run_at=run_at)).run_at == run_at


@pytest.mark.parametrize(
    "run_at",
    [
        datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))),
    ],
    ids=["before the first", "after the last"],
)
def test_a_time_beyond_the_calendar_is_refused(kind: JobKind[Any], run_at: datetime) -> None:
    with nothing_stored(), pytest.raises(ValueError, match="run_at"):
        kind.enqueue(run_at=run_at)


@pytest.mark.row("queue", "C09")
@pytest.mark.parametrize(
    "org", ["", 0, True, b"a", " a", "a ", "x" * 129, "a\n", "a\0b", "\u200b", "\ud800"]
)
def test_a_wrong_org_is_refused(kind: JobKind[Any], org: Any) -> None:
    with nothing_stored(), pytest.raises((ValueError, TypeError), match="org"):
        kind.enqueue(org=org)


@pytest.mark.row("queue", "C09")
@pytest.mark.parametrize("org", ["x" * 128, "ü" * 128, "😀" * 128, "a b", "%s", "'", '"', "*"])
def test_an_org_of_up_to_128_printable_characters_is_stored_as_it_is(
    kind: JobKind[Any], make_worker: MakeWorker, org: str
) -> None:
    job_id = kind.enqueue(org=org)
    assert job_of(job_id).org == org
    assert make_worker().run_once() == 1


@pytest.mark.row("queue", "C13")
@pytest.mark.parametrize(
    "key",
    [
        *("", 0, b"a", "x" * 256, "a\n", "\0", "\ud800"),
        *("sched:1", "wf:1", "evt:1", "job:1"),
    ],
)
def test_a_wrong_key_is_refused(kind: JobKind[Any], key: Any) -> None:
    with nothing_stored(), pytest.raises((ValueError, TypeError), match="key"):
        kind.enqueue(key=key)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"queue": ""}, ValueError),
        ({"queue": "*"}, ValueError),
        ({"queue": "a b"}, ValueError),
        ({"queue": "x" * 65}, ValueError),
        ({"queue": "a\n"}, ValueError),
        ({"queue": 5}, TypeError),
        ({"priority": 101}, ValueError),
        ({"priority": -101}, ValueError),
        ({"priority": True}, TypeError),
        ({"priority": 1.0}, TypeError),
        ({"max_attempts": 0}, ValueError),
        ({"max_attempts": 32_768}, ValueError),
        ({"max_attempts": True}, TypeError),
        ({"max_depth": 0}, ValueError),
        ({"max_depth": True}, TypeError),
        ({"max_depth": "3"}, TypeError),
        ({"meta": [1]}, TypeError),
        ({"meta": {"a": math.nan}}, (ValueError, InvalidPayload)),
        ({"meta": {"a": "x" * 16_384}}, (ValueError, InvalidPayload)),
        ({"run_at": "2031-05-07"}, TypeError),
        ({"delay": "1"}, TypeError),
        ({"delay": True}, TypeError),
        ({"colour": "red"}, TypeError),
    ],
)
def test_a_wrong_option_is_refused_before_the_payload_is_looked_at(
    declare: Declare, options: dict[str, Any], error: type[Exception]
) -> None:
    def ship(payload: Order) -> None:
        """Never called."""

    kind = declare("t.ship", ship)
    with nothing_stored(), pytest.raises(error) as raised:
        kind.enqueue({"wrong": 1}, **options)
    assert next(iter(options)) in str(raised.value)


def test_options_at_their_limits_are_stored(kind: JobKind[Any]) -> None:
    meta = {"a": "x" * (16_384 - len('{"a":""}'))}
    low = job_of(kind.enqueue(priority=-100, max_attempts=1, queue="x" * 64, meta=meta))
    high = job_of(kind.enqueue(priority=100, max_attempts=32_767, key="x" * 255, max_depth=1))
    assert (low.priority, low.max_attempts, low.queue, low.meta) == (-100, 1, "x" * 64, meta)
    assert (high.priority, high.max_attempts, high.key) == (100, 32_767, "x" * 255)


def test_a_kinds_own_defaults_are_used_where_the_call_names_none(declare: Declare) -> None:
    kind = declare("t.own", queue="low", priority=7, max_attempts=3, sensitive=True)
    own, named = (
        job_of(kind.enqueue()),
        job_of(kind.enqueue(queue="high", priority=0, max_attempts=9)),
    )
    assert (own.queue, own.priority, own.max_attempts, own.sensitive) == ("low", 7, 3, True)
    assert (named.queue, named.priority, named.max_attempts) == ("high", 0, 9)


def test_the_setting_bounds_the_payload(kind: JobKind[Any], settings: Any) -> None:
    settings.GNL = {"PAYLOAD_MAX_BYTES": 10}
    kind.enqueue("x" * 8)
    with nothing_stored(), pytest.raises(InvalidPayload):
        kind.enqueue("x" * 9)


@pytest.mark.django_db(transaction=True)
@pytest.mark.row("queue", "C34")
def test_a_handlers_own_jobs_belong_to_its_org_unless_it_names_another(
    declare: Declare, make_worker: MakeWorker
) -> None:
    made: dict[str | None, tuple[int, int]] = {}

    def parent(payload: None, ctx: JobContext) -> None:
        made[ctx.org] = (ctx.enqueue("t.child", {}), ctx.enqueue("t.child", {}, org="other"))

    declare("t.child", queue="children")
    kind = declare("t.parent", parent)
    kind.enqueue(org="acme")
    kind.enqueue()
    make_worker().run_until_idle()
    assert {org: [job_of(child).org for child in ids] for org, ids in made.items()} == {
        "acme": ["acme", "other"],
        None: ["", "other"],
    }


@pytest.mark.django_db(transaction=True)
@pytest.mark.row("queue", "C34")
def test_a_revoked_handler_can_give_no_more_work(declare: Declare, make_worker: MakeWorker) -> None:
    raised = []

    def parent(payload: None, ctx: JobContext) -> None:
        assert ctx.signal.wait(DEADLINE)
        try:
            ctx.enqueue("t.child", {})
        except ExecutionRevoked as error:
            raised.append(error.why)
            raise

    declare("t.child", queue="children")
    declare("t.parent", parent, max_hold=0.01).enqueue()
    make_worker().run_once()
    assert raised == ["timeout"]
    assert not Job.objects.filter(kind="t.child").exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.row("queue", "C35")
def test_a_database_without_our_tables_is_an_error_that_says_what_to_do(
    kind: JobKind[Any],
) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE gnl_django_job RENAME TO elsewhere")
    try:
        for call in (kind.enqueue, lambda: kind.enqueue_many([1, 2]), lambda: cancel_job(1)):
            with pytest.raises(ImproperlyConfigured, match="migrate --database default") as error:
                call()
            assert isinstance(error.value.__cause__, DatabaseError)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE elsewhere RENAME TO gnl_django_job")
    assert not Job.objects.exists()


@pytest.mark.row("queue", "C35")
def test_an_unknown_alias_is_an_error_that_names_it(kind: JobKind[Any]) -> None:
    with nothing_stored(), pytest.raises(ConnectionDoesNotExist, match="nowhere"):
        kind.enqueue(using="nowhere")
