"""Two admin sites: the project's, and one of its own making under another prefix."""

from django.contrib import admin  # noqa: TID251 - a project's urls name the admin sites
from django.urls import path

from gnl_django.admin import JobAdmin
from gnl_django.models import Job

ops = admin.AdminSite(name="ops")
ops.register(Job, JobAdmin)

urlpatterns = [path("admin/", admin.site.urls), path("back/office/", ops.urls)]
