"""Rows of the durable runs: a run, its steps, and marks that stand alone.

State columns are written by `runs.journal` only; the CHECK constraints make an illegal row
unstorable, whoever writes it (runs.md 2).
"""

from django.db import models

from gnl_django.core.fields import NameField, UTCDateTimeField
from gnl_django.core.payloads import CanonicalJSONField


class RunState(models.TextChoices):
    """The four states of a run."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"


class StepState(models.TextChoices):
    """The states of a step; plain and atomic ones are only ever done."""

    CLAIMED = "claimed"
    FAILED = "failed"
    RELEASED = "released"
    DONE = "done"


#: From each state, the states a run may enter next (runs.md 4.5); canceled only by its owner.
RUN_TRANSITIONS: dict[RunState, frozenset[RunState]] = {
    RunState.RUNNING: frozenset(RunState),
    RunState.FAILED: frozenset({RunState.RUNNING, RunState.CANCELED}),
    RunState.CANCELED: frozenset({RunState.RUNNING}),
    RunState.COMPLETED: frozenset(),
}

#: The same for a side-effect step; `done` is final.
STEP_TRANSITIONS: dict[StepState, frozenset[StepState]] = {
    StepState.CLAIMED: frozenset(StepState),
    StepState.FAILED: frozenset({StepState.CLAIMED, StepState.RELEASED, StepState.DONE}),
    StepState.RELEASED: frozenset({StepState.CLAIMED}),
    StepState.DONE: frozenset(),
}


class Run(models.Model):
    """One durable run (runs.md 2.1)."""

    id = models.BigAutoField(primary_key=True)
    run_id = NameField(max_length=255)
    org = NameField(max_length=128, default="", blank=True)
    state = NameField(max_length=9, choices=RunState.choices, default=RunState.RUNNING)
    strict = models.BooleanField(default=True)
    input = CanonicalJSONField(null=True)
    input_hash = NameField(max_length=64, null=True)
    scheduled_for = UTCDateTimeField(null=True)
    entries = models.IntegerField(default=0)
    lock_token = NameField(max_length=32, null=True)
    lock_holder = NameField(max_length=255, null=True)
    lock_expires_at = UTCDateTimeField(null=True)
    cancel_requested_at = UTCDateTimeField(null=True)
    cancel_reason = models.CharField(max_length=500, default="", blank=True)
    result = CanonicalJSONField(null=True)
    note = models.CharField(max_length=255, default="", blank=True)
    error_class = models.CharField(max_length=255, default="", blank=True)
    error = models.TextField(default="", blank=True)
    created_at = UTCDateTimeField()
    updated_at = UTCDateTimeField()
    finished_at = UTCDateTimeField(null=True)

    class Meta:
        app_label = "gnl_django"
        default_permissions = ("view",)
        permissions = [("cancel_run", "Can cancel durable runs")]
        indexes = [
            models.Index(name="gnl_run_ended", fields=["state", "finished_at", "id"]),
            models.Index(name="gnl_run_org", fields=["org", "id"]),
        ]
        constraints = [
            models.UniqueConstraint(name="gnl_run_run_id", fields=["run_id"]),
            models.CheckConstraint(
                name="gnl_run_state", condition=models.Q(state__in=tuple(RunState.values))
            ),
            models.CheckConstraint(
                name="gnl_run_finished_iff_ended",
                condition=models.Q(state="running", finished_at__isnull=True)
                | (~models.Q(state="running") & models.Q(finished_at__isnull=False)),
            ),
            models.CheckConstraint(
                name="gnl_run_lock_whole",
                condition=models.Q(
                    lock_token__isnull=True,
                    lock_holder__isnull=True,
                    lock_expires_at__isnull=True,
                )
                | models.Q(
                    lock_token__isnull=False,
                    lock_holder__isnull=False,
                    lock_expires_at__isnull=False,
                ),
            ),
        ]

    def __str__(self) -> str:
        return str(self.run_id)


class Step(models.Model):
    """One step of a run (runs.md 2.2)."""

    MODES = ("plain", "side_effect", "atomic")

    id = models.BigAutoField(primary_key=True)
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="steps", db_index=False)
    key = NameField(max_length=220)
    ordinal = models.IntegerField()
    mode = NameField(max_length=11)
    state = NameField(max_length=8, choices=StepState.choices)
    output = CanonicalJSONField(null=True)
    claim_token = NameField(max_length=32, null=True)
    claimed_at = UTCDateTimeField(null=True)
    claim_ttl = models.IntegerField(null=True)
    attempt = models.IntegerField()
    started_at = UTCDateTimeField()
    finished_at = UTCDateTimeField(null=True)
    error = models.TextField(default="", blank=True)

    class Meta:
        app_label = "gnl_django"
        default_permissions = ("view",)
        permissions = [("resolve_step", "Can decide what became of a step")]
        indexes = [models.Index(name="gnl_step_ordinal", fields=["run", "ordinal"])]
        constraints = [
            models.UniqueConstraint(name="gnl_step_key", fields=["run", "key"]),
            models.CheckConstraint(
                name="gnl_step_done_iff_finished",
                condition=models.Q(state="done", finished_at__isnull=False)
                | models.Q(state__in=("claimed", "failed", "released"), finished_at__isnull=True),
            ),
            models.CheckConstraint(
                name="gnl_step_mode",
                condition=models.Q(mode__in=("plain", "side_effect", "atomic")),
            ),
        ]

    def __str__(self) -> str:
        return str(self.key)


class Mark(models.Model):
    """What `claim` and `frozen` have noted under a key, once for all (runs.md 2.3)."""

    key = NameField(max_length=255, primary_key=True)
    value = CanonicalJSONField()
    created_at = UTCDateTimeField()

    class Meta:
        app_label = "gnl_django"
        default_permissions = ("view",)
        indexes = [models.Index(name="gnl_mark_created", fields=["created_at"])]

    def __str__(self) -> str:
        return str(self.key)
