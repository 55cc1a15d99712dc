"""The admin, and nothing else: the Studio lives there."""

from django.contrib import admin  # noqa: TID251 - a project's urls name the admin site
from django.urls import path

urlpatterns = [path("admin/", admin.site.urls)]
