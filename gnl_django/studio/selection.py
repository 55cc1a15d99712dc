"""All jobs that meet a list's conditions, as of the page on which somebody saw them counted.

Called by the confirm page of an act on many. Jobs that came or died after that page are not meant
(security.md P6, studio.md R75).
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from django.core.exceptions import ValidationError
from django.http import QueryDict

from gnl_django.queue.models import Job
from gnl_django.studio import store
from gnl_django.studio.filters import Filters, Jobs, job_id

#: The order of each state's index, so that its rows are found by it.
INDEX_ORDER = {
    "ready": ("queue", "org", "-priority", "id"),
    "scheduled": ("run_at", "id"),
    "running": ("lease_expires_at", "id"),
    "dead": ("finished_at", "id"),
}
COUNT_MAX = 10_000


@dataclass(frozen=True)
class Selection:
    """Conditions, the newest id and the database's time when they were shown."""

    filters: Filters
    upper: int
    as_of: datetime

    def rows(self, root: Jobs) -> Jobs:
        """Return the selected rows of `root`, in an order that an index has."""
        rows = self.filters.apply(root).filter(pk__lte=self.upper)
        if self.filters.state == "dead":
            rows = rows.filter(finished_at__lte=self.as_of)
        return rows.order_by(*INDEX_ORDER[self.filters.state])

    def ids(self, root: Jobs, limit: int) -> tuple[list[int], bool]:
        """Return up to `limit` ids, the smallest first, and whether there are more."""
        found = list(self.rows(root).values_list("pk", flat=True)[: limit + 1])
        return sorted(found[:limit]), len(found) > limit

    def count(self, root: Jobs) -> str:
        """Return the number of rows in words; it stops counting above 10,000."""
        return store.capped(self.rows(root)[: COUNT_MAX + 1].count(), COUNT_MAX)


def now_shown(filters: Filters, using: str) -> Selection:
    """Return the selection as of this moment."""
    newest = Job.objects.using(using).order_by("-pk").values_list("pk", flat=True).first()
    return Selection(filters, newest or 0, store.snapshot(using).now)


def as_shown(filters: Filters, post: QueryDict) -> Selection:
    """Return the selection that the confirm page stated; ValidationError for any other form."""
    upper = job_id(post.get("upper") or "")
    try:
        given = datetime.fromisoformat(post.get("as_of") or "")
        as_of = given.astimezone(UTC) if given.tzinfo else None
    except (ValueError, OverflowError):
        as_of = None
    if upper is None or as_of is None:
        raise ValidationError("The form is not complete.")
    return Selection(filters, upper, as_of)
