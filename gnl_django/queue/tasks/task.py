"""`GnlTask`: Django's Task with the queue's options; and what of them travels with a job.

Made by `@task` and `.using()` in users' modules, so nothing here needs the apps to be ready
(queue.md R54).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from django.conf import settings
from django.tasks import Task, TaskResult
from django.tasks.exceptions import InvalidTask
from django.utils import timezone

from gnl_django import conf
from gnl_django.core import clock
from gnl_django.core.backoff import seconds
from gnl_django.queue import options as opt

if TYPE_CHECKING:
    AnyTask = Task[..., Any]
    Result = TaskResult[..., Any]
else:  # generic for the type checker only
    AnyTask, Result = Task, TaskResult

Seconds = float | timedelta
#: Seconds to wait after a failed attempt: one number, one for each attempt (the last repeats), or
#: `fn(exception, task_result)`, which may return None: no further attempt.
Backoff = Seconds | Sequence[Seconds] | Callable[[BaseException, Result], Seconds | None]
T = TypeVar("T", bound=AnyTask)

#: Where Job.meta holds what has no column: backend, run_after or run_in, backoff, timeout, call.
META = "task"


def _project_attempts() -> int:
    return conf.settings().MAX_ATTEMPTS


@dataclass(frozen=True, slots=True, kw_only=True)
class GnlTask(AnyTask):
    """A Task of `GnlBackend` (queue.md R54).

    max_attempts: attempts in all (GNL["MAX_ATTEMPTS"], 5). backoff: see `Backoff`; None: 1, 2, 4 ..
    300 s. timeout: seconds or timedelta after which the attempt has failed. key: at most one
    job per org and key, as long as that job is kept. org: whose job it is; they take turns.

    Raises InvalidTask for a value that no job can have.
    """

    max_attempts: int = field(default_factory=_project_attempts)
    backoff: Backoff | None = None
    timeout: Seconds | None = None
    key: str | None = None
    org: str | None = None
    #: The `run_after` that was given as a timedelta: it counts from the enqueue, by the database's
    #: clock. `run_after` then shows what it would be by this process's.
    run_in: timedelta | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Bring the options into one form and have the backend judge the whole."""
        try:
            opt.check_integer("max_attempts", self.max_attempts, 1, opt.ATTEMPTS_LIMIT)
            opt.check_org(self.org)
            if self.key is not None:
                opt.check_key(self.key)
            if self.timeout is not None:
                _set(self, "timeout", seconds(self.timeout))
            _set(self, "backoff", _backoff(self.backoff))
            if self.run_in is not None:
                seconds(self.run_in)
        except (TypeError, ValueError) as error:
            raise InvalidTask(str(error)) from error
        AnyTask.__post_init__(self)

    def using(
        self,
        *,
        priority: int | None = None,
        queue_name: str | None = None,
        run_after: datetime | timedelta | None = None,
        backend: str | None = None,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        timeout: Seconds | None = None,
        key: str | None = None,
        org: str | None = None,
    ) -> "GnlTask":
        """Return the task with other options; what is None stays as it is.

        run_after: an aware datetime, or a timedelta from the enqueue on. A `backoff` that is a
        function belongs into the task's definition, as the worker has only that: enqueue refuses
        another one.
        """
        given: dict[str, Any] = {
            "priority": priority,
            "queue_name": queue_name,
            "backend": backend,
            "max_attempts": max_attempts,
            "backoff": backoff,
            "timeout": timeout,
            "key": key,
            "org": org,
        }
        changes = {name: value for name, value in given.items() if value is not None}
        if isinstance(run_after, timedelta):
            try:
                seconds(run_after)
            except ValueError as error:
                raise InvalidTask(f"run_after: {error}") from error
            changes["run_in"] = run_after
            changes["run_after"] = local(clock.wall() + run_after)
        elif run_after is not None:
            changes["run_in"] = None
            changes["run_after"] = run_after
        return replace(self, **changes)


def _set(task: AnyTask, name: str, value: object) -> None:
    object.__setattr__(task, name, value)


def _backoff(backoff: Backoff | None) -> Backoff | None:
    if backoff is None or callable(backoff):
        return backoff
    if isinstance(backoff, Sequence):
        if not backoff:
            raise ValueError("backoff: an empty sequence")
        return tuple(seconds(part) for part in backoff)
    return seconds(backoff)


class Extra(NamedTuple):
    """The options that a GnlTask has and a plain Task has not."""

    max_attempts: int
    backoff: Backoff | None = None
    timeout: float | None = None
    key: str | None = None
    org: str | None = None
    run_in: timedelta | None = None


def extra_of(task: AnyTask) -> Extra:
    """Return a task's options; the defaults for one that was declared for another backend."""
    if isinstance(task, GnlTask):
        timeout = None if task.timeout is None else seconds(task.timeout)
        return Extra(task.max_attempts, task.backoff, timeout, task.key, task.org, task.run_in)
    return Extra(_project_attempts())


def local(moment: datetime) -> datetime:
    """Return an aware datetime in the project's form: naive local time when USE_TZ is False."""
    if settings.USE_TZ:
        return moment
    return timezone.make_naive(moment, timezone.get_default_timezone())


def aware(moment: datetime) -> datetime:
    """Return a datetime of the project's form with its time zone."""
    if timezone.is_aware(moment):
        return moment
    return timezone.make_aware(moment, timezone.get_default_timezone())


def to_meta(task: AnyTask, definition: AnyTask, call: str) -> dict[str, Any]:
    """Return what of `task` has no column: only what the definition does not say already.

    call: names this enqueue, "" when nobody will ask. Raises InvalidTask for a function that the
    worker could not find.
    """
    extra, usual = extra_of(task), extra_of(definition)
    meta: dict[str, Any] = {"backend": task.backend}
    if call:
        meta["call"] = call
    if extra.run_in is not None:
        meta["run_in"] = extra.run_in.total_seconds()
    elif task.run_after is not None:
        meta["run_after"] = aware(task.run_after).isoformat()
    if extra.timeout != usual.timeout:
        meta["timeout"] = extra.timeout
    if extra.backoff != usual.backoff:
        if callable(extra.backoff):
            raise InvalidTask(
                f"{task.module_path}: a backoff that is a function must be given where the task is "
                "defined"
            )
        meta["backoff"] = extra.backoff
    return {META: meta}


def marked(meta: object) -> Mapping[str, Any]:
    """Return what a job's meta says of its task; empty when it says nothing."""
    found = meta.get(META) if isinstance(meta, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def timeout_of(definition: AnyTask, mark: Mapping[str, Any]) -> float | None:
    """Return a job's timeout in seconds: its own, else the definition's."""
    timeout: float | None = mark.get("timeout", extra_of(definition).timeout)
    return timeout


def backoff_of(definition: AnyTask, mark: Mapping[str, Any]) -> Backoff | None:
    """Return a job's backoff: its own, else the definition's."""
    if "backoff" not in mark:
        return extra_of(definition).backoff
    own = mark["backoff"]
    return tuple(own) if isinstance(own, list) else own


def restored(task: T, **changes: Any) -> T:
    """Return a copy with other values, unjudged: an old job's may no longer be allowed."""
    copy: T = object.__new__(type(task))
    for known in fields(task):
        _set(copy, known.name, changes.get(known.name, getattr(task, known.name)))
    return copy
