"""Adds up a run of the demo when its queue is empty, and prints it.

`collect` reads, the functions above it only calculate. A job is lost when it is in no final state,
or succeeded without leaving its document: either fails the demo.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Max, Min, QuerySet
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gnl_django.models import Job
from testproject.demo.progress import Counts, count
from testproject.demo.work import Run
from testproject.library.background import KIND
from testproject.library.models import Document

LARGEST = 5
TENTH = 10
CHUNK = 500  # paths in one statement; SQLite before 3.32 takes 999 parameters


@dataclass(frozen=True)
class DeadGroup:
    """Dead jobs of one error class, with one of them as the example."""

    error_class: str
    jobs: int
    example: int
    path: str
    error: str


@dataclass(frozen=True)
class OrgTimes:
    """When one organization was served, in seconds from the first start of any job."""

    org: str
    jobs: int
    tenth: float | None  # None: fewer than ten have finished
    last: float | None


@dataclass(frozen=True)
class Summary:
    """All that is printed."""

    jobs: int
    counts: Counts
    seconds: float
    documents: int
    dead: list[DeadGroup]
    orgs: list[OrgTimes]

    @property
    def per_second(self) -> float:
        return per_second(self.counts.finished, self.seconds)

    @property
    def lost(self) -> int:
        return lost(self.jobs, self.counts, self.documents)


def per_second(jobs: int, seconds: float) -> float:
    """Return jobs per second; 0 when there was no time to measure."""
    return jobs / seconds if seconds > 0 else 0.0


def lost(jobs: int, counts: Counts, documents: int) -> int:
    """Return how many jobs have no end, or succeeded and left no document."""
    undone = max(0, counts.states.get("succeeded", 0) - documents)
    return max(0, jobs - counts.finished) + undone


def since(start: datetime | None, moment: datetime | None) -> float | None:
    """Return the seconds from `start` to `moment`, None when one of them is missing."""
    if start is None or moment is None:
        return None
    return (moment - start).total_seconds()


def collect(run: Run, paths: Iterable[str]) -> Summary:
    """Read the summary of `run`, whose jobs were enqueued for `paths`."""
    jobs = Job.objects.filter(pk__range=(run.first, run.last), kind=KIND).order_by()
    times = jobs.aggregate(start=Min("started_at"), end=Max("finished_at"))
    return Summary(
        jobs=run.jobs,
        counts=count(run),
        seconds=since(times["start"], times["end"]) or 0.0,
        documents=_documents(list(paths)),
        dead=_dead(jobs.filter(state="dead")),
        orgs=[
            _org(jobs.filter(org=org), org, size, times["start"])
            for org, size in sorted(run.sizes.items(), key=lambda item: (-item[1], item[0]))[
                :LARGEST
            ]
        ],
    )


def _documents(paths: list[str]) -> int:
    chunks = (paths[start : start + CHUNK] for start in range(0, len(paths), CHUNK))
    return sum(Document.objects.filter(path__in=chunk).count() for chunk in chunks)


def _dead(jobs: QuerySet[Job]) -> list[DeadGroup]:
    groups = list(
        jobs.values("error_class").annotate(jobs=Count("pk"), example=Min("pk")).order_by("-jobs")
    )
    examples = Job.objects.in_bulk([group["example"] for group in groups])
    return [
        DeadGroup(
            error_class=group["error_class"],
            jobs=group["jobs"],
            example=group["example"],
            path=examples[group["example"]].payload["path"],
            error=examples[group["example"]].error,
        )
        for group in groups
    ]


def _org(jobs: QuerySet[Job], org: str, size: int, start: datetime | None) -> OrgTimes:
    finished = jobs.filter(finished_at__isnull=False).order_by("finished_at", "pk")
    ends = finished.values_list("finished_at", flat=True)
    return OrgTimes(
        org=org,
        jobs=size,
        tenth=since(start, next(iter(ends[TENTH - 1 : TENTH]), None)),
        last=since(start, ends.last()),
    )


def show(console: Console, summary: Summary, answer: str = "") -> None:
    """Print the summary as tables, and below them the line about the agent's answer."""
    totals = Table(title="Summary", title_justify="left", show_header=False)
    totals.add_row("jobs", str(summary.jobs))
    for state, number in sorted(summary.counts.states.items()):
        totals.add_row(state, str(number))
    totals.add_row("documents", str(summary.documents))
    totals.add_row("lost", str(summary.lost))
    totals.add_row("seconds", f"{summary.seconds:.1f}")
    totals.add_row("jobs per second", f"{summary.per_second:.1f}")
    console.print(totals)

    dead = Table(title="Dead by error", title_justify="left")
    for column in ("error", "jobs", "example"):
        dead.add_column(column, overflow="fold")
    for group in summary.dead:
        example = f"job {group.example}, {group.path}\n{group.error}"
        dead.add_row(escape(group.error_class), str(group.jobs), escape(example))
    console.print(dead if summary.dead else "No job is dead.")

    orgs = Table(
        title="The five largest organizations, enqueued in this order (seconds from the start)",
        title_justify="left",
    )
    for column in ("organization", "jobs", "10th job finished", "last job finished"):
        orgs.add_column(column, justify="left" if column == "organization" else "right")
    for times in summary.orgs:
        orgs.add_row(
            escape(times.org), str(times.jobs), _seconds(times.tenth), _seconds(times.last)
        )
    console.print(orgs)
    if answer:
        console.print(answer, highlight=False, markup=False, soft_wrap=True)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
