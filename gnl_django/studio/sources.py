"""In which order a list is read, and which index gives that order.

Called by the list. A condition that the source's index does not answer is residual: then the list
reads the source in windows, so that no page reads more than one (studio.md 2.6, R13, R25).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.db.models import BigIntegerField, ExpressionWrapper, F, Q

from gnl_django.core import paging
from gnl_django.studio.filters import Filters, Jobs

#: Entries of the source that one page reads at most when a condition is residual.
WINDOW = 20_000

Values = Sequence[Any]


@dataclass(frozen=True)
class Source:
    """An order that ends in id and whose columns all run the same way."""

    scope: str
    columns: tuple[str, ...] = ("id",)
    newest_first: bool = True
    #: A state with few rows: read whole through its index, then sorted.
    whole: bool = False
    residual: bool = False

    def ordered(self, rows: Jobs, *, backward: bool) -> Jobs:
        """Return the rows in the source's order, or against it."""
        descending = self.newest_first is not backward
        if self.whole:
            # "+ 0" keeps planners from walking the primary key in search of a rare state.
            key = ExpressionWrapper(F("id") + 0, output_field=BigIntegerField())
            return rows.order_by(key.desc() if descending else key.asc())
        sign = "-" if descending else ""
        return rows.order_by(*(sign + column for column in self.columns))

    def beyond(self, values: Values, *, backward: bool) -> Q:
        """Return the condition for rows that come after `values`, or before them."""
        side = "lt" if self.newest_first is not backward else "gt"
        first, last = self.columns[0], self.columns[-1]
        if first == last:
            return Q(**{f"{last}__{side}": values[0]})
        # The redundant first half keeps every database on the index.
        return Q(**{f"{first}__{side}e": values[0]}) & (
            Q(**{f"{first}__{side}": values[0]}) | Q(**{f"{last}__{side}": values[-1]})
        )

    def up_to(self, values: Values, *, backward: bool) -> Q:
        """Return the condition for rows that do not come after `values`, or before them."""
        side = "gt" if self.newest_first is not backward else "lt"
        first, last = self.columns[0], self.columns[-1]
        if first == last:
            return Q(**{f"{last}__{side}e": values[0]})
        return Q(**{f"{first}__{side}e": values[0]}) & (
            Q(**{f"{first}__{side}": values[0]}) | Q(**{f"{last}__{side}e": values[-1]})
        )

    def encode(self, values: Values) -> str:
        """Return the cursor at `values` of the order's columns."""
        texts = [
            value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value
            for value in values
        ]
        return paging.encode(self.scope, texts)

    def decode(self, cursor: str) -> list[Any]:
        """Return the values of a cursor; ValueError unless it was made by this source."""
        form = [*([str] * (len(self.columns) - 1)), int]
        found: list[Any] = paging.decode(self.scope, cursor, form)
        if None in found:
            raise ValueError("cursor: a value is missing")
        for at in range(len(found) - 1):
            moment = datetime.fromisoformat(found[at])
            if moment.tzinfo is None:
                raise ValueError("cursor: a time without a zone")
            found[at] = moment.astimezone(UTC)
        return found


def choose(filters: Filters, *, few_ready: bool) -> Source:
    """Return the source of a list with these conditions.

    few_ready: reading all ready jobs costs no more than a window.
    """
    state = filters.state
    scope = f"jobs:{state or 'all'}"
    narrowed = bool(filters.kind or filters.queue)
    if state == "dead":
        return Source(scope, columns=("finished_at", "id"), residual=narrowed or bool(filters.org))
    if state == "scheduled":
        return Source(
            scope,
            columns=("run_at", "id"),
            newest_first=False,
            residual=narrowed or bool(filters.org),
        )
    if state == "running" or (state == "ready" and few_ready):
        # As many rows as handlers run, or few by count.
        return Source(scope, whole=True)
    return Source(scope, residual=narrowed or bool(state))
