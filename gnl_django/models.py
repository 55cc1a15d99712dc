"""Front door: the models of every floor, where Django looks for them."""

from gnl_django.core.models import Process
from gnl_django.queue.models import Attempt, Job, QueueState

__all__ = ["Attempt", "Job", "Process", "QueueState"]
