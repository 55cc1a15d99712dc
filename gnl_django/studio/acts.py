"""The doors of the acts on jobs: one job's, and that of all that match; who may pass, what is said.

Base of the jobs' admin. Every door checks the permission, acts only by POST, shows a page on GET
that changes nothing, and says what became of each job (studio.md R70-R81, security.md P5, C2).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import DEFAULT_DB_ALIAS, transaction
from django.http import Http404, HttpRequest, HttpResponseNotAllowed
from django.http.response import HttpResponseBase, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse

from gnl_django import conf
from gnl_django.queue.models import Job
from gnl_django.studio import filters, formats, ops, selection
from gnl_django.studio.filters import Filters, Jobs
from gnl_django.studio.ops import OPS, Op, Report

if TYPE_CHECKING:
    Base = admin.ModelAdmin[Job]
else:
    Base = admin.ModelAdmin

METHODS = ["GET", "HEAD", "POST"]


class ActPages(Base):
    """A ModelAdmin of jobs with the pages of the acts, and what all doors share."""

    def may(self, request: HttpRequest, op: Op) -> bool:
        """Tell whether the user may see jobs and do this to them."""
        return self.has_view_permission(request) and request.user.has_perm(
            f"gnl_django.{op.permission}"
        )

    def require(self, request: HttpRequest, op: Op, ids: list[int]) -> None:
        """Raise PermissionDenied unless the user may; a refused POST is recorded."""
        if self.may(request, op):
            return
        if request.method == "POST":  # a page that is only looked at writes nothing
            reason = f"no permission “{op.permission_name}”"
            ops.refuse(op, ids, self._actor(request), reason)
        raise PermissionDenied(
            f"You may look at jobs but not {op.verb.lower()} them (needs “{op.permission_name}”)."
        )

    def act(self, request: HttpRequest, op: Op, ids: list[int], *, about: str = "") -> None:
        """Do it, and tell the user what became of the jobs."""
        report = ops.run(op, ids, self._actor(request), conf.settings().DATABASE, about=about)
        level = messages.SUCCESS if report.done else messages.WARNING
        self.message_user(request, told(ids, report), level)
        if report.unrecorded:
            text = "Done, but the audit entry could not be written."
            self.message_user(request, text, messages.WARNING)

    def link(self, page: str, *args: object) -> str:
        """Return the address of one of the jobs' pages on this admin site."""
        name = f"admin:gnl_django_job_{page}"
        return reverse(name, args=args, current_app=self.admin_site.name)

    def get_urls(self) -> list[URLPattern]:
        """Put the acts' pages before Django's, whose last pattern takes everything."""
        one, many = self._door(self.op_view), self._door(self.many_view)
        ours = [
            path("op/<slug:slug>/", many, name="gnl_django_job_op_many"),
            path("<path:object_id>/op/<slug:slug>/", one, name="gnl_django_job_op"),
        ]
        return ours + super().get_urls()

    def _door(self, view: Callable[..., Any]) -> Callable[..., Any]:
        door: Callable[..., Any] = self.admin_site.admin_view(view)
        for alias in {DEFAULT_DB_ALIAS, conf.settings().DATABASE}:
            # ATOMIC_REQUESTS would join the chunks of an act into one long transaction.
            door = transaction.non_atomic_requests(using=alias)(door)
        return door

    def op_view(self, request: HttpRequest, object_id: str, slug: str) -> HttpResponseBase:
        """Act on one job; GET asks first."""
        op = self._op(slug)
        if request.method not in METHODS:
            return HttpResponseNotAllowed(METHODS)
        number = filters.job_id(unquote(object_id))
        ids = [] if number is None else [number]
        self.require(request, op, ids)
        job = self.get_object(request, unquote(object_id))
        if job is None:
            if request.method == "POST":
                ops.refuse(op, ids, self._actor(request), "no such job")
            raise Http404("no such job")
        back = self.link("change", job.pk)
        if request.method == "POST":
            self.act(request, op, [job.pk])
            return HttpResponseRedirect(back)
        return self._confirm(
            request,
            op,
            {
                "title": f"{op.verb} {job.kind} #{job.pk}?",
                "possible": job.state in op.states,
                "why_not": f"The job is {job.state}; nothing would change.",
                "badge": formats.badge(job.state),
                "button": f"{op.verb} job {job.pk}",
                "back": back,
            },
        )

    def many_view(self, request: HttpRequest, slug: str) -> HttpResponseBase:
        """Act on all jobs that meet the list's conditions; GET says how many they are."""
        op = self._op(slug)
        if request.method not in METHODS:
            return HttpResponseNotAllowed(METHODS)
        self.require(request, op, [])
        asked = filters.read(request.GET)
        back = self.link("changelist") + asked.query()
        if asked.ignored or asked.state not in op.listed:
            # A condition that was dropped would make it act on more than was meant.
            text = f"{op.verb} all: choose one of the states {', '.join(sorted(op.listed))} first."
            if asked.ignored:
                text = f"{op.verb} all: the filter {asked.ignored[0]} is not valid."
            self.message_user(request, text, messages.ERROR)
            return HttpResponseRedirect(back)
        root = self.get_queryset(request)
        if request.method == "POST":
            self._run_many(request, op, asked, root)
            return HttpResponseRedirect(back)
        chosen = selection.now_shown(asked, root.db)
        count = chosen.count(root)
        return self._confirm(
            request,
            op,
            {
                "title": f"{op.verb} {count} {'job' if count == '1' else 'jobs'}?",
                "possible": count != "0",
                "why_not": "No job matches; nothing would change.",
                "words": asked.words(),
                "chosen": chosen,
                "button": f"{op.verb} {count} {'job' if count == '1' else 'jobs'}",
                "back": back,
            },
        )

    def _run_many(self, request: HttpRequest, op: Op, asked: Filters, root: Jobs) -> None:
        try:
            chosen = selection.as_shown(asked, request.POST)
        except ValidationError as error:
            self.message_user(request, f"{error.message} Nothing was done.", messages.ERROR)
            return
        ids, more = chosen.ids(root, op.limit)
        self.act(request, op, ids, about=asked.words())
        if more:
            text = f"More than {op.limit:,} match: {op.verb.lower()} all again for the rest."
            self.message_user(request, text, messages.WARNING)

    def _op(self, slug: str) -> Op:
        if slug not in OPS:
            raise Http404("no such act")
        return OPS[slug]

    def _confirm(self, request: HttpRequest, op: Op, context: dict[str, Any]) -> TemplateResponse:
        request.current_app = self.admin_site.name
        return TemplateResponse(
            request,
            "admin/gnl_django/job/op.html",
            {**self.admin_site.each_context(request), "opts": self.opts, "op": op,
             "media": self.media, **context},
        )  # fmt: skip

    def _actor(self, request: HttpRequest) -> ops.Actor:
        return ops.Actor(request.user.pk, request.user.get_username())


def told(ids: list[int], report: Report) -> str:
    """Return what an act did, in a sentence."""
    skipped = sum(report.skipped.values())
    if len(ids) == 1:
        if skipped:
            return f"Nothing changed: job {ids[0]} is {next(iter(report.skipped))}."
        return f"Job {ids[0]} {next(iter(report.done))}."
    parts = [_jobs(count, words) for words, count in sorted(report.done.items())]
    if skipped:
        why = ", ".join(f"{count} {words}" for words, count in sorted(report.skipped.items()))
        parts.append(f"{skipped:,} skipped: {why}")
    return (". ".join(parts) or "No job matched; nothing changed") + "."


def _jobs(count: int, words: str) -> str:
    return f"{count:,} {'job' if count == 1 else 'jobs'} {words}"
