"""Jobs in the admin: the list and one job's page.

Registered by `gnl_django.admin`. Pages read; nothing changes a job here but the acts (`acts`,
`ops`), each with a permission of its own: no form, no delete (studio.md R6, R7, security.md P1-P4).
"""

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import unquote
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase, HttpResponseRedirect
from django.utils.html import format_html
from django.utils.safestring import SafeString

from gnl_django import conf
from gnl_django.queue.models import Job
from gnl_django.studio import detail, filters, formats
from gnl_django.studio.acts import ActPages
from gnl_django.studio.changelist import KeysetChangeList
from gnl_django.studio.filters import Jobs
from gnl_django.studio.ops import OPS, Op

#: Columns that no list reads: they may hold a megabyte each.
HEAVY = ("payload", "meta", "result", "progress", "error")
#: Action name -> act.
ACTIONS = {f"{slug}_selected": op for slug, op in OPS.items()}
TICKED_MAX = 1_000


@admin.register(Job)
class JobAdmin(ActPages):
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
        return self.may(request, OPS["retry"])

    def has_cancel_job_permission(self, request: HttpRequest) -> bool:
        """Tell whether the user may see jobs and cancel them."""
        return self.may(request, OPS["cancel"])

    def sees_payloads(self, request: HttpRequest) -> bool:
        """Tell whether the user may see the values and errors of sensitive kinds."""
        return request.user.has_perm("gnl_django.view_payload")

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
                self.require(request, op, self._ticked(request))
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
            link = self.link("op_many", op.slug) + filters.read(request.GET).query()
            return HttpResponseRedirect(link)
        self.act(request, op, self._ticked(request))
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
            (op, self.link("op_many", op.slug) + asked.query())
            for op in OPS.values()
            if asked.state in op.listed and self.may(request, op)
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
                (op, self.link("op", job.pk, op.slug), job.state in op.states)
                for op in OPS.values()
                if self.may(request, op)
            ],
        )
        return super().render_change_form(request, context, *args, **kwargs)

    def _get_obj_does_not_exist_redirect(
        self, request: HttpRequest, opts: Any, object_id: str
    ) -> HttpResponseRedirect:
        shown = unquote(object_id)[:40]
        kept = conf.settings()
        text = (
            f"Job {shown} does not exist or was purged (finished jobs are kept "
            f"{formats.days(kept.KEEP_SUCCEEDED)}, dead ones {formats.days(kept.KEEP_DEAD)})."
        )
        self.message_user(request, text, messages.WARNING)
        return HttpResponseRedirect(self.link("changelist"))
