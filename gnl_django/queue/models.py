"""Rows of the queue, the states of a job and the transitions allowed between them.

State columns are written by `queue.store` only; the CHECK constraints make an illegal row
unstorable, whoever writes it (queue.md 2).
"""

from django.db import models

from gnl_django.core.fields import NameField, UTCDateTimeField
from gnl_django.core.payloads import CanonicalJSONField
from gnl_django.core.schema import Clause, PartialIndex, UniqueWherePresent


class State(models.TextChoices):
    """The six states of a job."""

    SCHEDULED = "scheduled"
    READY = "ready"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELED = "canceled"


STATES = tuple(State.values)
FINAL = (State.SUCCEEDED, State.DEAD, State.CANCELED)

#: From each state, the states a job may enter next (queue.md 4.7); all else is a bug.
TRANSITIONS: dict[State, frozenset[State]] = {
    State.SCHEDULED: frozenset({State.READY, State.CANCELED}),
    State.READY: frozenset({State.RUNNING, State.CANCELED}),
    State.RUNNING: frozenset(State),
    State.SUCCEEDED: frozenset(),
    State.DEAD: frozenset({State.READY, State.CANCELED}),
    State.CANCELED: frozenset({State.READY}),
}


def _in(column: str, values: tuple[str, ...]) -> Clause:
    # The constant array is ready made; IN would be turned into one for every statement.
    return Clause(
        f"{column} IN ({', '.join(repr(value) for value in values)})",
        postgresql=f"{column} = ANY ('{{{','.join(values)}}}'::text[])",
    )


class Job(models.Model):
    """One piece of work and its whole life (queue.md 2.1)."""

    id = models.BigAutoField(primary_key=True)
    kind = NameField(max_length=128)
    queue = NameField(max_length=64, default="default")
    org = NameField(max_length=128, default="", blank=True)
    state = NameField(max_length=9, choices=State.choices)
    priority = models.SmallIntegerField(default=0)
    payload = CanonicalJSONField(null=True)
    meta = CanonicalJSONField(default=dict)
    sensitive = models.BooleanField(default=False)
    key = models.CharField(max_length=255, null=True)  # noqa: DJ001 - NULL means: no key
    dedup = NameField(max_length=64, null=True)
    run_id = NameField(max_length=255, null=True)
    scheduled_for = UTCDateTimeField(null=True)
    run_at = UTCDateTimeField()
    attempt = models.SmallIntegerField(default=0)
    max_attempts = models.SmallIntegerField(default=5)
    revivals = models.SmallIntegerField(default=0)
    deferrals = models.IntegerField(default=0)
    claim_token = NameField(max_length=32, null=True)
    lease_expires_at = UTCDateTimeField(null=True)
    worker = models.CharField(max_length=100, null=True)  # noqa: DJ001 - NULL: never claimed
    cancel_requested_at = UTCDateTimeField(null=True)
    cancel_reason = models.CharField(max_length=500, default="", blank=True)
    progress = CanonicalJSONField(null=True)
    result = CanonicalJSONField(null=True)
    note = models.CharField(max_length=255, default="", blank=True)
    error_class = models.CharField(max_length=255, default="", blank=True)
    error = models.TextField(default="", blank=True)
    error_key = NameField(max_length=16, null=True)
    enqueued_at = UTCDateTimeField()
    started_at = UTCDateTimeField(null=True)
    finished_at = UTCDateTimeField(null=True)

    class Meta:
        app_label = "gnl_django"
        default_permissions = ("view",)
        permissions = [
            ("retry_job", "Can retry jobs"),
            ("cancel_job", "Can cancel jobs"),
            ("view_payload", "Can see payloads"),
        ]
        indexes = [
            PartialIndex(
                name="gnl_job_ready",
                fields=["queue", "org", "-priority", "id", "kind", "run_at"],
                where=models.Q(state="ready"),
                mysql=["state", "queue", "org", "-priority", "id", "kind", "run_at"],
            ),
            PartialIndex(
                name="gnl_job_due",
                fields=["run_at", "id"],
                where=models.Q(state="scheduled"),
                mysql=["state", "run_at", "id"],
            ),
            PartialIndex(
                name="gnl_job_sched_lane",
                fields=["queue", "org"],
                where=models.Q(state="scheduled"),
                mysql=None,
            ),
            PartialIndex(
                name="gnl_job_lease",
                fields=["lease_expires_at", "id"],
                where=models.Q(state="running"),
                mysql=["state", "lease_expires_at", "id"],
            ),
            models.Index(name="gnl_job_org", fields=["org", "id"]),
            PartialIndex(
                name="gnl_job_dead",
                fields=["finished_at", "id", "error_key"],
                where=models.Q(state="dead"),
                mysql=["state", "finished_at", "id", "error_key"],
            ),
        ]
        constraints = [
            UniqueWherePresent(name="gnl_job_dedup", field="dedup"),
            models.CheckConstraint(name="gnl_job_state", condition=_in("state", STATES)),
            models.CheckConstraint(
                name="gnl_job_token_iff_running",
                condition=Clause("(claim_token IS NULL) = (state <> 'running')"),
            ),
            models.CheckConstraint(
                name="gnl_job_lease_iff_running",
                condition=Clause("(lease_expires_at IS NULL) = (state <> 'running')"),
            ),
            models.CheckConstraint(
                name="gnl_job_finished_iff_final",
                condition=Clause(
                    "(finished_at IS NULL) = (state IN ('scheduled', 'ready', 'running'))",
                    postgresql="(finished_at IS NULL) = "
                    "(state = ANY ('{scheduled,ready,running}'::text[]))",
                ),
            ),
            models.CheckConstraint(
                name="gnl_job_attempts", condition=models.Q(attempt__gte=0, max_attempts__gte=1)
            ),
            models.CheckConstraint(
                name="gnl_job_priority",
                condition=models.Q(priority__gte=-100, priority__lte=100),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} #{self.pk}"


class Attempt(models.Model):
    """One attempt that did not succeed (queue.md 2.2); success and deferral write no row."""

    OUTCOMES = ("failed", "timeout", "lease_lost", "canceled", "released", "invalid")

    id = models.BigAutoField(primary_key=True)
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="attempts", db_index=False)
    number = models.SmallIntegerField()
    revival = models.SmallIntegerField()
    outcome = NameField(max_length=10)
    error_class = models.CharField(max_length=255, default="", blank=True)
    message = models.TextField(default="", blank=True)
    traceback = models.TextField(default="", blank=True)
    worker = models.CharField(max_length=100, default="", blank=True)
    claim_token = NameField(max_length=32)
    started_at = UTCDateTimeField()
    finished_at = UTCDateTimeField()

    class Meta:
        app_label = "gnl_django"
        default_permissions = ("view",)
        indexes = [models.Index(name="gnl_attempt_job", fields=["job", "id"])]
        constraints = [
            models.CheckConstraint(
                name="gnl_attempt_outcome",
                condition=models.Q(
                    outcome__in=(
                        "failed",
                        "timeout",
                        "lease_lost",
                        "canceled",
                        "released",
                        "invalid",
                    )
                ),
            ),
        ]


class QueueState(models.Model):
    """A pause or a setting of a queue (`org` empty) or of one lane (studio.md 2.2)."""

    id = models.BigAutoField(primary_key=True)
    queue = NameField(max_length=64)
    org = NameField(max_length=128, default="", blank=True)
    paused_at = UTCDateTimeField(null=True)
    paused_by = models.CharField(max_length=150, default="", blank=True)
    pause_reason = models.CharField(max_length=200, default="", blank=True)
    alert_age = models.IntegerField(null=True)
    changed_at = UTCDateTimeField()

    class Meta:
        app_label = "gnl_django"
        verbose_name = "queue"
        default_permissions = ("view", "change")
        constraints = [
            models.UniqueConstraint(name="gnl_queuestate_lane", fields=["queue", "org"]),
            models.CheckConstraint(
                name="gnl_queuestate_any_queue",
                condition=~models.Q(queue="*") | ~models.Q(org=""),
            ),
        ]
