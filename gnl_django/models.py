"""Front door: the models of every floor, where Django looks for them."""

from gnl_django.core.models import Process
from gnl_django.queue.models import Attempt, Job, QueueState
from gnl_django.runs.models import Mark, Run, Step

__all__ = ["Attempt", "Job", "Mark", "Process", "QueueState", "Run", "Step"]
