"""The documents in the admin, to look at only: rows are made by jobs."""

from django.contrib import admin  # noqa: TID251 - a project's own page in the admin
from django.http import HttpRequest

from testproject.library.models import Document


@admin.register(Document)
class DocumentAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """A list without a count of the whole table, and a page that changes nothing."""

    list_display = ["path", "package", "lines", "functions", "classes"]
    search_fields = ["path"]
    ordering = ["path"]
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Document | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Document | None = None) -> bool:
        return False
