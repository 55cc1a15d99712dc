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
from collections.abc import Iterator, Mapping, Sequence
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

#: Seconds after which a statement is planned anew: a plan made while the table was small meets a
#: burst badly (20,000 jobs: 430/s until autoanalyze came, against 5,500/s).
PLAN_AGE = 1.0

#: What a pooler answers when it does not keep prepared statements (queue.md R51).
_LOST_PLANS = frozenset({"26000", "42P05"})

_MARK = re.compile(r"%(?:\((\w+)\)s|%)")

#: Raw connection -> name of a prepared statement -> monotonic time of its plan.
_plans: "WeakKeyDictionary[Any, dict[bytes, float]]" = WeakKeyDictionary()
_preparing = True  # of the process: off behind a pooler that cannot keep plans (R51)


def run(raw: Any, statements: Sequence[Statement], *, prepare: bool) -> list[list[Any]]:
    """Send all statements at once and return the rows of each.

    They are one transaction, which ends with the last of them, without BEGIN and COMMIT; all is
    undone when one fails. raw: a psycopg connection without an open transaction. statements: texts
    with `%(name)s`, and their values: text, numbers, times or None. prepare: keep plans on this
    connection, for at most a second. Raises what psycopg raises.
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
    if now - plans.get(name, -PLAN_AGE) >= PLAN_AGE:
        _forget(pgconn, name, known=name in plans)
        pgconn.send_prepare(name, query)
        plans[name] = now
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
        while pgconn.is_busy():
            _wait(pgconn)
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:  # the end of one statement's results
            if pgconn.status != pq.ConnStatus.OK:
                raise psycopg.OperationalError("the connection is lost")
        elif result.status == pq.ExecStatus.PIPELINE_SYNC:
            return
        else:
            yield result


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
