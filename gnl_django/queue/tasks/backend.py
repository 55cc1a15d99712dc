"""`GnlBackend`: Django's tasks as jobs. Judges tasks, enqueues them, finds their results.

Made by `django.tasks` from the setting TASKS, once a thread, also before the apps are ready; it
holds nothing but its options (queue.md R54-R59).
"""

import re
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage
from django.tasks import TaskResult, TaskResultStatus
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.base import TASK_MAX_PRIORITY, TASK_MIN_PRIORITY
from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist, TaskResultMismatch
from django.tasks.signals import task_enqueued

from gnl_django import conf
from gnl_django.queue import api
from gnl_django.queue import options as opt
from gnl_django.queue.store.looks import JobSeen, enqueued_at, look
from gnl_django.queue.tasks import results
from gnl_django.queue.tasks.kind import TaskKind, register
from gnl_django.queue.tasks.task import (
    AnyTask,
    GnlTask,
    Result,
    aware,
    extra_of,
    local,
    marked,
    restored,
    to_meta,
)

OPTIONS = frozenset({"using"})
JOB_ID = re.compile(r"[1-9][0-9]{0,18}")
NO_WHOLE_NUMBER = (
    f"priority must be a whole number between {TASK_MIN_PRIORITY} and {TASK_MAX_PRIORITY}."
)


class GnlBackend(BaseTaskBackend):
    """Runs django.tasks through the queue.

    TASKS = {"default": {"BACKEND": "gnl_django.tasks.GnlBackend", "QUEUES": [..],
    "OPTIONS": {"using": alias}}}; `using` is the database alias, GNL["DATABASE"] without it.
    """

    task_class = GnlTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    @property
    def using(self) -> str:
        """The database alias of the jobs."""
        alias: str = self.options.get("using") or conf.settings().DATABASE
        return alias

    def validate_task(self, task: AnyTask) -> None:
        """Judge a task and register its kind; raises InvalidTask."""
        if isinstance(task.priority, bool) or not isinstance(task.priority, int):
            raise InvalidTask(NO_WHOLE_NUMBER)
        if task.run_after is not None and not isinstance(task.run_after, datetime):
            raise InvalidTask("run_after must be a datetime, in .using() also a timedelta.")
        super().validate_task(task)
        try:
            opt.check_name("queue", task.queue_name, opt.QUEUE_MAX)
        except (TypeError, ValueError) as error:
            raise InvalidTask(str(error)) from error
        register(task)

    def enqueue(  # type: ignore[override]  # the stubs name the arguments by the task's signature
        self, task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Result:
        """Store one job of the task in the caller's transaction and return its result (R56).

        A key that is in use already gives the result of its job, and nothing is written. Raises
        InvalidTask, TypeError or InvalidPayload for what cannot be stored, TaskResultMismatch when
        the key belongs to a job of something else.
        """
        self.validate_task(task)
        kind = register(task)
        extra = extra_of(task)
        call = "" if extra.key is None else secrets.token_hex(8)
        absolute = extra.run_in is None and task.run_after is not None
        job_id = api.enqueue(
            kind,
            {"args": list(args), "kwargs": dict(kwargs)},
            key=extra.key,
            org=extra.org,
            queue=task.queue_name,
            priority=task.priority,
            run_at=aware(task.run_after) if absolute and task.run_after is not None else None,
            delay=extra.run_in,
            max_attempts=extra.max_attempts,
            meta=to_meta(task, kind.task, call),
            using=self.using,
        )
        if call:
            present = look(self.using, job_id)
            if present is not None and marked(present.meta).get("call") != call:
                return self._present(present, task)
        result = self._new(task, job_id, args, kwargs)
        task_enqueued.send_robust(sender=type(self), task_result=result)
        return result

    def _new(
        self, task: AnyTask, job_id: int, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Result:
        """Return the result of a job as it was when enqueued, even if a worker has it by now."""
        at = enqueued_at(self.using, job_id)
        delay = extra_of(task).run_in
        if at is not None and delay is not None:
            task = restored(task, run_after=local(at + delay))
        return TaskResult(
            task=task,
            id=str(job_id),
            status=TaskResultStatus.READY,
            enqueued_at=None if at is None else local(at),
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=list(args),
            kwargs=dict(kwargs),
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )

    def _present(self, job: JobSeen, task: AnyTask) -> Result:
        """Return the result of the job that has the key already."""
        if job.kind != task.module_path:
            raise TaskResultMismatch(
                f"The key {job.key!r} belongs to job {job.id} of {job.kind!r} already."
            )
        return results.result_of(job, register(task).task, self.alias)

    def get_result(self, result_id: str) -> Result:
        """Return the result of a job of a task (queue.md R57).

        Raises TaskResultDoesNotExist for what is no id of such a job, InvalidTask when the job's
        function is gone.
        """
        if not isinstance(result_id, str) or not JOB_ID.fullmatch(result_id):
            raise TaskResultDoesNotExist(result_id)
        job_id = int(result_id)
        stored = look(self.using, job_id) if job_id < 2**63 else None
        if stored is None:
            raise TaskResultDoesNotExist(result_id)
        kind = opt.kinds.find(stored.kind)
        if isinstance(kind, TaskKind):
            return results.result_of(stored, kind.task, self.alias)
        if kind is None and marked(stored.meta):
            raise InvalidTask(
                f"Result {result_id} is of {stored.kind!r}, and no such task is registered."
            )
        raise TaskResultDoesNotExist(result_id)

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        """Say what would keep the backend from working (queue.md R59)."""
        place = f"TASKS[{self.alias!r}]"
        found: list[CheckMessage] = []
        if not apps.is_installed("gnl_django"):
            text = f"{place} uses GnlBackend, but 'gnl_django' is not in INSTALLED_APPS."
            found.append(checks.Error(text, id="gnl_django.E020"))
        if self.using not in settings.DATABASES:
            text = f"{place}: {self.using!r} is not an alias of DATABASES."
            found.append(checks.Error(text, id="gnl_django.E021"))
        for queue in sorted(self.queues, key=str):
            try:
                opt.check_name("queue", queue, opt.QUEUE_MAX)
            except (TypeError, ValueError) as error:
                found.append(checks.Error(f"{place}['QUEUES']: {error}", id="gnl_django.E022"))
        if unknown := sorted(set(self.options) - OPTIONS):
            text = f"{place}['OPTIONS'] has unknown keys: {', '.join(unknown)}."
            hint = f"GnlBackend knows {', '.join(sorted(OPTIONS))}."
            found.append(checks.Warning(text, hint=hint, id="gnl_django.W020"))
        return found
