"""Statements of PostgreSQL in one round trip and one transaction, prepared where that is allowed.

Called by stores whose batches are sent many times a second. It speaks to libpq through `psycopg.pq`
because a cursor for each statement costs more than the statements: 10 jobs settled and claimed take
250 us of this process with cursors and 90 us here. A pipeline that was left half way closes its
connection: nobody ever reads the answers of somebody else.
"""

import hashlib
import logging
import re
import select
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from time import monotonic
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg import capabilities, pq
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result

logger = logging.getLogger(__name__)

Params = Mapping[str, Any]
Statement = tuple[str, Params]

#: Seconds and uses after which a statement is planned anew: a plan made while the table was small
#: meets a burst badly (20,000 jobs: 430/s until autoanalyze came, against 5,500/s). But a single
#: job of a quiet queue is not to wait for the planner (a claim's plan takes 3 ms).
PLAN_AGE, PLAN_USES = 1.0, 20
#: Seconds after which it is planned anew in any case.
PLAN_AGE_MAX = 60.0


class _Plan:
    """When a statement was planned, by the monotonic clock, and how often it was used since."""

    __slots__ = ("made_at", "uses")

    def __init__(self, now: float) -> None:
        self.made_at = now
        self.uses = 0

    def stale(self, now: float) -> bool:
        """Tell whether it is to be planned anew before it is used."""
        age = now - self.made_at
        return age >= PLAN_AGE_MAX or (age >= PLAN_AGE and self.uses >= PLAN_USES)


#: What a pooler answers when it does not keep prepared statements (queue.md R51).
_LOST_PLANS = frozenset({"26000", "42P05"})

_MARK = re.compile(r"%(?:\((\w+)\)s|%)")

#: Raw connection -> name of a prepared statement -> its plan.
_plans: "WeakKeyDictionary[Any, dict[bytes, _Plan]]" = WeakKeyDictionary()
_preparing = True  # of the process: off behind a pooler that cannot keep plans (R51)


def run(raw: Any, statements: Sequence[Statement], *, prepare: bool) -> list[list[Any]]:
    """Send all statements at once and return the rows of each.

    They are one transaction, which ends with the last of them, without BEGIN and COMMIT; all is
    undone when one fails. raw: a psycopg connection without an open transaction. statements: texts
    with `%(name)s`, and their values: text, numbers, times or None. prepare: keep plans on this
    connection, for about a second. Raises what psycopg raises.
    """
    global _preparing
    prepare = prepare and _preparing
    try:
        return _exchange(raw, statements, prepare=prepare)
    except psycopg.Error as error:
        if not prepare or error.sqlstate not in _LOST_PLANS:
            raise
        _preparing = False
        logger.info("Prepared statements are off: the pooler does not keep them")
    return _exchange(raw, statements, prepare=False)


def single(raw: Any, text: str, params: Params) -> list[Any]:
    """Send one statement, in whatever transaction the connection has; return its rows.

    Its values are part of the text, quoted by libpq: a statement that is not prepared takes the
    server 20 us less so than with values beside it, and leaves no trace in the session.
    """
    pgconn = raw.pgconn
    query = _literal(pgconn, text, params)
    with raw.lock:
        whole = False
        try:
            pgconn.send_query(query)
            _flush(pgconn)
            result = _next(pgconn)
            whole = _next(pgconn) is None
        finally:
            if not whole:
                raw.close()
    if result.status != pq.ExecStatus.TUPLES_OK:
        raise error_from_result(result)
    return _rows(raw, result)


def _exchange(raw: Any, statements: Sequence[Statement], *, prepare: bool) -> list[list[Any]]:
    pgconn = raw.pgconn
    with raw.lock:
        pgconn.enter_pipeline_mode()
        whole = False
        try:
            for text, params in statements:
                _send(raw, text, params, prepare=prepare)
            pgconn.pipeline_sync()
            _flush(pgconn)
            results = list(_results(pgconn))
            pgconn.exit_pipeline_mode()
            whole = True
        finally:
            if not whole:
                raw.close()
    failed = [result for result in results if result.status == pq.ExecStatus.FATAL_ERROR]
    if failed:
        _plans.pop(raw, None)  # nobody knows which of them were prepared
        raise error_from_result(failed[0])
    return [_rows(raw, result) for result in results if result.status == pq.ExecStatus.TUPLES_OK]


def _send(raw: Any, text: str, params: Params, *, prepare: bool) -> None:
    pgconn = raw.pgconn
    query, name, order = _numbered(text)
    values = [_encoded(params[each]) for each in order]
    if not prepare:
        pgconn.send_query_params(query, values)
        return
    plans, now = _plans.setdefault(raw, {}), monotonic()
    plan = plans.get(name)
    if plan is None or plan.stale(now):
        _forget(pgconn, name, known=plan is not None)
        pgconn.send_prepare(name, query)
        plan = plans[name] = _Plan(now)
    plan.uses += 1
    pgconn.send_query_prepared(name, values)


def _forget(pgconn: Any, name: bytes, *, known: bool) -> None:
    if capabilities.has_send_close_prepared():
        pgconn.send_close_prepared(name)  # no error when there is none
    elif known:
        pgconn.send_query_params(b"DEALLOCATE " + name, [])


@lru_cache(maxsize=512)
def _numbered(text: str) -> tuple[bytes, bytes, tuple[str, ...]]:
    """Return the text with `$1` for `%(name)s`, a name for its plan, and the order of the values.

    The name says what is prepared under it: behind a pooler a statement of that name which somebody
    else has left there is the same statement.
    """
    numbers: dict[str, int] = {}

    def number(mark: "re.Match[str]") -> str:
        return f"${numbers.setdefault(mark[1], len(numbers) + 1)}" if mark[1] else "%"

    query = _MARK.sub(number, text).encode()
    digest = hashlib.sha256(query).hexdigest()[:24]
    return query, f"gnl_{digest}".encode(), tuple(numbers)


def _literal(pgconn: Any, text: str, params: Params) -> bytes:
    """Return the text with quoted values."""
    quote = pq.Escaping(pgconn).escape_literal
    parts = []
    for part, name in _parts(text):
        parts.append(part)
        if name is not None:
            value = _encoded(params[name])
            parts.append(b"NULL" if value is None else bytes(quote(value)))
    return b"".join(parts)


@lru_cache(maxsize=512)
def _parts(text: str) -> tuple[tuple[bytes, str | None], ...]:
    """Cut the text at its marks: what stands before each, and its name."""
    pieces = re.split(r"%\((\w+)\)s", text)
    texts = [piece.replace("%%", "%").encode() for piece in pieces[::2]]
    return tuple(zip(texts, [*pieces[1::2], None], strict=True))


def _encoded(value: Any) -> bytes | None:
    """Return a value as PostgreSQL's text form; the server takes its type from the statement."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bool, int, float)):
        return str(value).encode()
    if isinstance(value, datetime):
        return value.isoformat().encode()
    raise TypeError(f"a statement takes no {type(value).__name__}")


def _flush(pgconn: Any) -> None:
    while pgconn.flush():
        # The server may wait for us to read before it takes more.
        if _wait(pgconn, writing=True):
            pgconn.consume_input()


def _results(pgconn: Any) -> Iterator[Any]:
    """Yield the results of the statements up to the sync."""
    while True:
        result = _next(pgconn)
        if result is None:  # the end of one statement's results
            if pgconn.status != pq.ConnStatus.OK:
                raise psycopg.OperationalError("the connection is lost")
        elif result.status == pq.ExecStatus.PIPELINE_SYNC:
            return
        else:
            yield result


def _next(pgconn: Any) -> Any:
    while pgconn.is_busy():
        _wait(pgconn)
        pgconn.consume_input()
    return pgconn.get_result()


def _wait(pgconn: Any, *, writing: bool = False) -> bool:
    """Wait until the socket can be used; return whether it can be read."""
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(pgconn.socket, select.POLLIN | (select.POLLOUT if writing else 0))
        return any(event & ~select.POLLOUT for _, event in poll.poll())
    socket = [pgconn.socket]
    return bool(select.select(socket, socket if writing else [], [])[0])


def _rows(raw: Any, result: Any) -> list[Any]:
    reader = Transformer(raw)
    reader.set_pgresult(result)
    return reader.load_rows(0, result.ntuples, tuple)


def array(values: Iterable[object]) -> str:
    """Return an array as PostgreSQL's text form; cheaper than the driver's lists (measured)."""
    return "{" + ",".join(map(_element, values)) + "}"


def column(values: Sequence[object]) -> str:
    """Return `array(values)`; a column of one value, as most are, is written only once.

    A column of texts is quoted as one, far below Python; none of them holds a NUL.
    """
    first = values[0]
    if values.count(first) == len(values):
        return "{" + ",".join([_element(first)] * len(values)) + "}"
    if all(type(value) is str for value in values):
        whole = "\0".join(values).replace("\\", "\\\\").replace('"', '\\"')  # type: ignore[arg-type]
        return '{"' + whole.replace("\0", '","') + '"}'
    return array(values)


def _element(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, datetime):
        return f'"{value.isoformat()}"'
    return str(value)
