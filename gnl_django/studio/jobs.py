"""Jobs in the admin: the list, one job's page, and the doors of the acts on them.

Registered by `gnl_django.admin`. Pages read; only a POST acts, after its own permission, and
nothing else changes a job here: no form, no delete (studio.md R6, R70-R81, security.md P1-P8).
"""

from typing import TYPE_CHECKING, Any, NoReturn

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.http.response import HttpResponseBase, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from gnl_django import conf
from gnl_django.queue.models import Job
from gnl_django.studio import detail, filters, formats, ops, selection
from gnl_django.studio.changelist import KeysetChangeList
from gnl_django.studio.filters import Jobs
from gnl_django.studio.ops import OPS, Op, Report

if TYPE_CHECKING:
    Base = admin.ModelAdmin[Job]
else:
    Base = admin.ModelAdmin

#: Columns that no list reads: they may hold a megabyte each.
HEAVY = ("payload", "meta", "result", "progress", "error")
#: Action name -> act.
ACTIONS = {f"{slug}_selected": op for slug, op in OPS.items()}
TICKED_MAX = 1_000
METHODS = ["GET", "HEAD", "POST"]


@admin.register(Job)
class JobAdmin(Base):
    """Jobs, to look at and to retry or cancel."""

    list_display = ("name", "status", "queue_name", "attempts_made", "time")
    list_display_links = ("name",)
    list_per_page = 50
    list_max_show_all = 0
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    sortable_by = ()
    search_fields = ()
    view_on_site = False
    actions = tuple(ACTIONS)

    class Media:
        css = {"all": ("gnl_django/studio.css",)}

    # what may be seen, and by whom

    def get_queryset(self, request: HttpRequest) -> Jobs:
        """Return the jobs of the queue's database, without their heavy columns."""
        return super().get_queryset(request).using(conf.settings().DATABASE).defer(*HEAVY)

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Job | None:
        """Return the job of an id, None for anything that is no id of a job."""
        number = filters.job_id(object_id)
        return None if number is None else self.get_queryset(request).filter(pk=number).first()

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[KeysetChangeList]:
        """Return the list that never counts the table."""
        return KeysetChangeList

    def get_fields(self, request: HttpRequest, obj: Job | None = None) -> list[Any]:
        """Return none: the page is ours, not a form's."""
        return []

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Job | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Job | None = None) -> bool:
        return False

    def has_retry_job_permission(self, request: HttpRequest) -> bool:
        """Tell whether the user may see jobs and retry them."""
        return self._may(request, OPS["retry"])

    def has_cancel_job_permission(self, request: HttpRequest) -> bool:
        """Tell whether the user may see jobs and cancel them."""
        return self._may(request, OPS["cancel"])

    def sees_payloads(self, request: HttpRequest) -> bool:
        """Tell whether the user may see the values and errors of sensitive kinds."""
        return request.user.has_perm("gnl_django.view_payload")

    def _may(self, request: HttpRequest, op: Op) -> bool:
        return self.has_view_permission(request) and request.user.has_perm(
            f"gnl_django.{op.permission}"
        )

    # columns

    @admin.display(description="job")
    def name(self, job: Job) -> SafeString:
        """Return kind, id and organization, and the reason of a failure below."""
        shown: Any = job
        return format_html(
            '<span class="gnl-job"><span class="gnl-kind">{}</span> <span class="gnl-id">#{}</span>'
            ' <span class="gnl-org">{}</span></span><span class="gnl-line" title="{}">{}</span>',
            job.kind, str(job.pk), job.org, shown.line, shown.line,
        )  # fmt: skip

    @admin.display(description="state")
    def status(self, job: Job) -> SafeString:
        """Return the state; on a small screen the time stands below it."""
        shown: Any = job
        return format_html(
            '{}<span class="gnl-small">{}</span>',
            formats.badge(job.state),
            formats.when(job, shown.seen_at),
        )

    @admin.display(description="queue")
    def queue_name(self, job: Job) -> SafeString:
        """Return the queue; a long name is cut on the page and whole in the title."""
        return format_html('<span title="{}">{}</span>', job.queue, job.queue)

    @admin.display(description="attempt")
    def attempts_made(self, job: Job) -> str:
        """Return the attempts made and allowed."""
        return f"{job.attempt} / {job.max_attempts}"

    @admin.display(description="when")
    def time(self, job: Job) -> SafeString:
        """Return the time that matters in the job's state."""
        shown: Any = job
        return formats.when(job, shown.seen_at)

    # the list

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the list, or act on the ticked rows of a POST."""
        if request.method == "POST":
            for op in self._asked_for(request):
                self._require(request, op, self._ticked(request))
            self._drop_what_is_no_id(request)
        return super().changelist_view(
            request, {"title": "Jobs", "many": self._many_links(request), **(extra_context or {})}
        )

    def get_actions(self, request: HttpRequest, action_location: Any = None) -> dict[str, Any]:
        """Return the acts the user may do; a project's site-wide actions are not for jobs."""
        place = {} if action_location is None else {"action_location": action_location}
        offered = super().get_actions(request, **place)
        return {name: action for name, action in offered.items() if name in ACTIONS}

    @admin.action(permissions=["retry_job"], description="Retry ticked jobs")
    def retry_selected(self, request: HttpRequest, queryset: Jobs) -> HttpResponseBase | None:
        """Retry the ticked jobs."""
        return self._act_on_ticked(request, OPS["retry"])

    @admin.action(permissions=["cancel_job"], description="Cancel ticked jobs")
    def cancel_selected(self, request: HttpRequest, queryset: Jobs) -> HttpResponseBase | None:
        """Cancel the ticked jobs."""
        return self._act_on_ticked(request, OPS["cancel"])

    def _act_on_ticked(self, request: HttpRequest, op: Op) -> HttpResponseBase | None:
        if request.POST.get("select_across") == "1":
            # All that match is more than anyone has seen: say how many first.
            link = self._many_link(op) + filters.read(request.GET).query()
            return HttpResponseRedirect(link)
        self._run(request, op, self._ticked(request))
        return None

    def _asked_for(self, request: HttpRequest) -> list[Op]:
        return [ACTIONS[name] for name in request.POST.getlist("action") if name in ACTIONS]

    def _ticked(self, request: HttpRequest) -> list[int]:
        given = request.POST.getlist(ACTION_CHECKBOX_NAME)[:TICKED_MAX]
        return sorted({number for text in given if (number := filters.job_id(text)) is not None})

    def _drop_what_is_no_id(self, request: HttpRequest) -> None:
        # Django would look up whatever was posted, and "x" is an error for an id.
        untyped: Any = request
        post = request.POST.copy()
        if ACTION_CHECKBOX_NAME in post:
            post.setlist(ACTION_CHECKBOX_NAME, [str(number) for number in self._ticked(request)])
        untyped.POST = post

    def _many_links(self, request: HttpRequest) -> list[tuple[Op, str]]:
        """Return the acts on all jobs that the list's conditions meet, with their pages."""
        asked = filters.read(request.GET)
        if asked.ignored:
            return []
        return [
            (op, self._many_link(op) + asked.query())
            for op in OPS.values()
            if asked.state in op.listed and self._may(request, op)
        ]

    # one job

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Add what the job's page shows."""
        job: Job = context["original"]
        context.update(
            title=f"{job.kind} #{job.pk}",
            subtitle=None,
            gnl=detail.load(job, open_to_user=self.sees_payloads(request)),
            buttons=[
                (op, self._op_link(op, job), job.state in op.states)
                for op in OPS.values()
                if self._may(request, op)
            ],
        )
        return super().render_change_form(request, context, *args, **kwargs)

    def _get_obj_does_not_exist_redirect(
        self, request: HttpRequest, opts: Any, object_id: str
    ) -> HttpResponseRedirect:
        shown = unquote(object_id)[:40]
        text = (
            f"Job {shown} does not exist or was purged"
            " (finished jobs are kept 7 days, dead ones 90)."
        )
        self.message_user(request, text, messages.WARNING)
        return HttpResponseRedirect(self._link("changelist"))

    # the acts' own pages

    def get_urls(self) -> list[URLPattern]:
        """Put the acts' pages before Django's, whose last pattern takes everything."""
        wrap = self.admin_site.admin_view
        ours = [
            path("op/<slug:slug>/", wrap(self.many_view), name="gnl_django_job_op_many"),
            path("<path:object_id>/op/<slug:slug>/", wrap(self.op_view), name="gnl_django_job_op"),
        ]
        return ours + super().get_urls()

    @transaction.non_atomic_requests
    def op_view(self, request: HttpRequest, object_id: str, slug: str) -> HttpResponseBase:
        """Act on one job; GET asks first."""
        op = self._op(slug)
        if request.method not in METHODS:
            return HttpResponseNotAllowed(METHODS)
        number = filters.job_id(unquote(object_id))
        ids = [] if number is None else [number]
        self._require(request, op, ids)
        job = self.get_object(request, unquote(object_id))
        if job is None:
            if request.method == "POST":
                ops.refuse(op, ids, self._actor(request), "no such job")
            raise Http404("no such job")
        back = self._link("change", job.pk)
        if request.method == "POST":
            self._run(request, op, [job.pk])
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

    @transaction.non_atomic_requests
    def many_view(self, request: HttpRequest, slug: str) -> HttpResponseBase:
        """Act on all jobs that meet the list's conditions; GET says how many they are."""
        op = self._op(slug)
        if request.method not in METHODS:
            return HttpResponseNotAllowed(METHODS)
        self._require(request, op, [])
        asked = filters.read(request.GET)
        back = self._link("changelist") + asked.query()
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

    def _run_many(self, request: HttpRequest, op: Op, asked: filters.Filters, root: Jobs) -> None:
        try:
            chosen = selection.as_shown(asked, request.POST)
        except ValidationError as error:
            self.message_user(request, f"{error.message} Nothing was done.", messages.ERROR)
            return
        ids, more = chosen.ids(root, op.limit)
        self._run(request, op, ids, about=asked.words())
        if more:
            text = f"More than {op.limit:,} match: {op.verb.lower()} all again for the rest."
            self.message_user(request, text, messages.WARNING)

    def _op(self, slug: str) -> Op:
        if slug not in OPS:
            raise Http404("no such act")
        return OPS[slug]

    def _require(self, request: HttpRequest, op: Op, ids: list[int]) -> None:
        if self._may(request, op):
            return
        if request.method == "POST":  # a page that is only looked at writes nothing
            reason = f"no permission “{op.permission_name}”"
            ops.refuse(op, ids, self._actor(request), reason)
        self._deny(op)

    def _deny(self, op: Op) -> NoReturn:
        raise PermissionDenied(
            f"You may look at jobs but not {op.verb.lower()} them (needs “{op.permission_name}”)."
        )

    def _run(self, request: HttpRequest, op: Op, ids: list[int], *, about: str = "") -> None:
        report = ops.run(op, ids, self._actor(request), conf.settings().DATABASE, about=about)
        level = messages.SUCCESS if report.done else messages.WARNING
        self.message_user(request, told(ids, report), level)
        if report.unrecorded:
            text = "Done, but the audit entry could not be written."
            self.message_user(request, text, messages.WARNING)

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

    def _link(self, page: str, *args: object) -> str:
        name = f"admin:gnl_django_job_{page}"
        return reverse(name, args=args, current_app=self.admin_site.name)

    def _op_link(self, op: Op, job: Job) -> str:
        return self._link("op", job.pk, op.slug)

    def _many_link(self, op: Op) -> str:
        return self._link("op_many", op.slug)


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
