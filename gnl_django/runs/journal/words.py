"""Each vendor's words for spans of time, locks and inserts that yield to a present row."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Words:
    """What the texts of `shared` and `rowwise` fill in.

    `after`: `{now}` plus a parameter that `duration` makes of seconds, written `{0}`.
    `age`: seconds since the column `{0}`. `share`, `update`: locks of a SELECT.
    `insert`, `unless_present`: begin and end of an INSERT that leaves a present row as it is.
    `by`: hint of the index `{0}`, where a small table would else be read as a whole, and locked
    rows of others be waited for; `delete`: a DELETE from `{0}` by index `{1}`.
    """

    after: str
    duration: Callable[[float], object]
    age: str
    share: str
    update: str
    skip: str
    insert: str
    unless_present: str
    by: str = ""
    delete: str = "DELETE FROM {0}"


WORDS = {
    "postgresql": Words(
        after="({{now}} + %({0})s::float8 * interval '1 second')",
        duration=float,
        age="extract(epoch FROM {{now}} - {0})::float8",
        share=" FOR SHARE",
        update=" FOR UPDATE",
        skip=" FOR UPDATE SKIP LOCKED",
        insert="INSERT",
        unless_present=" ON CONFLICT DO NOTHING",
    ),
    # MariaDB has no FOR SHARE. IGNORE would hide nothing else: the values are checked before.
    "mysql": Words(
        after="({{now}} + INTERVAL %({0})s MICROSECOND)",
        duration=lambda seconds: round(seconds * 1_000_000),
        age="(TIMESTAMPDIFF(MICROSECOND, {0}, {{now}}) / 1000000e0)",
        share=" LOCK IN SHARE MODE",
        update=" FOR UPDATE",
        skip=" FOR UPDATE SKIP LOCKED",
        insert="INSERT IGNORE",
        unless_present="",
        by=" FORCE INDEX ({0})",
        delete="DELETE t FROM {0} t FORCE INDEX ({1})",
    ),
    # One writer: BEGIN IMMEDIATE is the lock. julianday() would be 40 us out, and strftime rounds
    # to milliseconds: whole seconds and the rest are reckoned apart.
    "sqlite": Words(
        after="(strftime('%%Y-%%m-%%d %%H:%%M:%%f', {{base}}, %({0})s) || '000')",
        duration=lambda seconds: f"{seconds:+.6f} seconds",
        age="(strftime('%%s', substr({{now}}, 1, 19)) - strftime('%%s', substr({0}, 1, 19)) "
        "+ (substr({{now}}, 21) - substr({0}, 21)) / 1000000.0)",
        share="",
        update="",
        skip="",
        insert="INSERT",
        unless_present=" ON CONFLICT DO NOTHING",
    ),
}
