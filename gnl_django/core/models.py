"""Rows that more than one floor writes: a running process and its heartbeat.

Written by `core.fleet`; read by the Studio and `gnl_status`.
"""

from django.db import models

from gnl_django.core.fields import NameField, UTCDateTimeField
from gnl_django.core.payloads import CanonicalJSONField


class Process(models.Model):
    """One running worker, scheduler or consumer (studio.md 2.1); its state follows from times."""

    ROLES = ("worker", "scheduler", "consumer")

    id = models.BigAutoField(primary_key=True)
    name = NameField(max_length=100)
    role = NameField(max_length=9)
    host = models.CharField(max_length=255)
    pid = models.IntegerField()
    version = models.CharField(max_length=32)
    release = models.CharField(max_length=64, default="", blank=True)
    started_at = UTCDateTimeField()
    seen_at = UTCDateTimeField()
    stopped_at = UTCDateTimeField(null=True)
    queues = CanonicalJSONField(default=list)
    kinds = CanonicalJSONField(default=list)
    concurrency = models.IntegerField(default=0)
    active = models.IntegerField(default=0)
    stuck = models.IntegerField(default=0)
    draining = models.BooleanField(default=False)
    oldest_started_at = UTCDateTimeField(null=True)
    last_pass_at = UTCDateTimeField(null=True)
    claimed = models.BigIntegerField(default=0)
    completed = models.BigIntegerField(default=0)
    failed = models.BigIntegerField(default=0)
    rss_kib = models.IntegerField(null=True)
    last_error = models.CharField(max_length=255, default="", blank=True)
    last_error_at = UTCDateTimeField(null=True)
    command = NameField(max_length=6, default="", blank=True)
    command_by = models.CharField(max_length=150, default="", blank=True)
    command_at = UTCDateTimeField(null=True)

    class Meta:
        app_label = "gnl_django"
        verbose_name = "worker"
        default_permissions = ("view",)
        constraints = [
            models.UniqueConstraint(name="gnl_process_name", fields=["name"]),
            models.CheckConstraint(
                name="gnl_process_role",
                condition=models.Q(role__in=("worker", "scheduler", "consumer")),
            ),
            models.CheckConstraint(
                name="gnl_process_command",
                condition=models.Q(command__in=("", "drain", "resume")),
            ),
        ]
