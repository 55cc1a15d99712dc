"""The list of jobs: keyset pages over an index, whatever the table's size.

Django's ChangeList counts the table and pages by OFFSET; this one never calls its `get_results`.
A page is at most four statements and at most one window of the source (studio.md R10-R15, R25).
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.admin.views.main import PAGE_VAR, ChangeList
from django.db.models import F, Q
from django.db.models.functions import Left
from django.http import HttpRequest

from gnl_django.queue.models import Job, State
from gnl_django.queue.options import kinds
from gnl_django.studio import filters, formats, sources, store
from gnl_django.studio.filters import Filters, Jobs

TABS = ("", "ready", "scheduled", "running", "dead", "succeeded", "canceled")
AFTER, BEFORE = "a~", "b~"
ERROR_CHARACTERS = 300
#: The newest rows whose kinds and queues are offered as choices.
RECENT = 500


@dataclass(frozen=True)
class Tab:
    """One state above the list."""

    label: str
    query: str
    count: str
    current: bool


@dataclass(frozen=True)
class Position:
    """Where a page begins: after (or, `backward`, before) these values; None = at the start."""

    values: list[Any] | None = None
    backward: bool = False


class KeysetChangeList(ChangeList):
    """Django's list page over one page of rows that we read ourselves."""

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> Jobs:
        """Return all rows that meet the conditions, unordered and not cut."""
        self.filter_specs: list[Any] = []
        self.has_filters = self.has_active_filters = False
        self.clear_all_filters_qs = "?"
        self.filters = filters.read(request.GET)
        # Links carry what was understood, nothing else.
        self.filter_params = {name: [value] for name, value in self.filters.parameters().items()}
        return self.filters.apply(self.root_queryset)

    def get_results(self, request: HttpRequest) -> None:
        """Read the page."""
        using = self.root_queryset.db
        self.snapshot = store.snapshot(using)
        self.source = sources.choose(self.filters, few_ready=self._few_ready())
        self.bad_cursor = False
        position = self._position(request.GET.get(PAGE_VAR, ""))
        rows = self._read(position)
        if not rows and position.backward and self.looked_to is None:
            rows = self._read(Position())
        self.result_list = rows
        self.result_count = self.full_result_count = len(rows)
        self.show_full_result_count = self.can_show_all = self.multi_page = False
        self.show_admin_actions = bool(rows)
        paginator: Any = None  # nothing asks it when multi_page is False
        self.paginator = paginator
        self._look_at(rows, request)
        self.tabs = self._tabs()
        self._offer_choices(using)

    def get_ordering_field_columns(self) -> dict[int, Any]:
        """No column sorts: the source has the order."""
        return {}

    @property
    def narrowed(self) -> bool:
        """Tell whether there are conditions beside the tab's state."""
        return bool(self.filters.parameters().keys() - {"state"})

    @property
    def unfiltered(self) -> str:
        """Return the query string of the tab alone."""
        return Filters(state=self.filters.state).query()

    @property
    def range_text(self) -> str:
        """Return how many rows are shown, and how far the list has looked for them."""
        count = len(self.result_list)
        if self.looked_to is not None:
            place = self.looked_to[0]
            shown = formats.stamp(place) if isinstance(place, datetime) else f"job {place}"
            return f"{count} found, searched as far as {shown}."
        if self.older or self.newer:
            return f"{count} shown"
        return "1 job." if count == 1 else f"{count} jobs."

    @property
    def older_label(self) -> str:
        """Return the words of the link to what follows."""
        if self.looked_to is not None:
            return "Search further"
        return "Older" if self.source.newest_first else "Next"

    @property
    def newer_label(self) -> str:
        """Return the words of the link to what was before."""
        return "Newer" if self.source.newest_first else "Previous"

    def _few_ready(self) -> bool:
        if self.filters.state != State.READY:
            return False
        if self.snapshot.counts["ready"] <= store.COUNT_MAX:
            return True
        # In the order of its index, so that it is counted there.
        ready = self.root_queryset.filter(state=State.READY).order_by("queue")
        return ready[: sources.WINDOW + 1].count() <= sources.WINDOW

    def _position(self, cursor: str) -> Position:
        if not cursor or self.filters.text:
            return Position()
        if cursor[:2] in (AFTER, BEFORE):
            try:
                return Position(self.source.decode(cursor[2:]), cursor[:2] == BEFORE)
            except (ValueError, OverflowError):
                pass
        self.bad_cursor = True
        return Position()

    def _read(self, position: Position) -> list[Job]:
        """Return the rows of the page and set the links to its neighbours."""
        source, backward, size = self.source, position.backward, self.list_per_page
        reach = Q()
        if position.values is not None:
            reach = source.beyond(position.values, backward=backward)
        end = None
        if source.residual and not self.filters.text:
            end = self._window_end(reach, backward=backward)
        rows = self.queryset.filter(reach)
        if end is not None:
            rows = rows.filter(source.up_to(end, backward=backward))
        shown = rows.annotate(error_head=Left(F("error"), ERROR_CHARACTERS))
        found = list(source.ordered(shown, backward=backward)[: size + 1])
        full = len(found) > size
        del found[size:]
        if backward:
            found.reverse()
        self._link(found, position, full=full, end=end)
        return found

    def _window_end(self, reach: Q, *, backward: bool) -> tuple[Any, ...] | None:
        """Return the place up to which this page looks, None when the source ends before."""
        rows = self.root_queryset.filter(reach)
        if self.source.columns == ("id",):
            rows = rows.filter(org=self.filters.org) if self.filters.org else rows
        else:
            rows = rows.filter(state=self.filters.state)
        places = self.source.ordered(rows, backward=backward).values_list(*self.source.columns)
        last = list(places[sources.WINDOW - 1 : sources.WINDOW + 1])
        return last[0] if len(last) == 2 else None

    def _link(
        self, rows: list[Job], position: Position, *, full: bool, end: tuple[Any, ...] | None
    ) -> None:
        self.older = self.newer = ""
        #: Set when the page ends because its window did: up to where it looked.
        self.looked_to = None if full or end is None else end
        first, last = (self._values(rows[0]), self._values(rows[-1])) if rows else (None, None)
        ahead = (last if not position.backward else first) if full else end
        behind = first if not position.backward else last
        if ahead is not None:
            self._point(BEFORE if position.backward else AFTER, ahead)
        if position.values is not None:
            self._point(AFTER if position.backward else BEFORE, behind or position.values)

    def _point(self, side: str, values: Any) -> None:
        link = self.get_query_string({PAGE_VAR: side + self.source.encode(values)})
        if side == AFTER:
            self.older = link
        else:
            self.newer = link

    def _values(self, row: Job) -> list[Any]:
        return [getattr(row, column) for column in self.source.columns]

    def _look_at(self, rows: list[Job], request: HttpRequest) -> None:
        """Give each row what its columns show: the page's time, and what may be seen of errors."""
        open_to_user = request.user.has_perm("gnl_django.view_payload")
        for row in rows:
            shown: Any = row
            shown.seen_at = self.snapshot.now
            shown.line = note_of(row, hidden=row.sensitive and not open_to_user)

    def _tabs(self) -> list[Tab]:
        return [
            Tab(
                label=state.capitalize() or "All",
                query=self.filters.in_state(state).query(),
                count=self.snapshot.shown(state),
                current=state == self.filters.state,
            )
            for state in TABS
        ]

    def _offer_choices(self, using: str) -> None:
        newest = Job.objects.using(using).order_by("-id").values_list("kind", "queue")[:RECENT]
        recent = list(newest)
        known = [kind for name in kinds if (kind := kinds.known(name))]
        self.kind_choices = sorted(
            {kind for kind, _ in recent} | {kind.kind for kind in known} | {self.filters.kind}
        )
        self.queue_choices = sorted(
            {queue for _, queue in recent} | {kind.queue for kind in known} | {self.filters.queue}
        )


def note_of(job: Any, *, hidden: bool) -> str:
    """Return the line under a job's name: why it failed, or what is asked of it."""
    if job.state == State.CANCELED or job.cancel_requested_at is not None:
        asked = "stop asked" if job.state == State.RUNNING else ""
        return ": ".join(part for part in (asked, formats.first_line(job.cancel_reason)) if part)
    if not job.error_class or job.state == State.SUCCEEDED:
        return ""
    if hidden:
        return f"{formats.short_class(job.error_class)} (text hidden)"
    return formats.first_line(job.error_head) or formats.short_class(job.error_class)
