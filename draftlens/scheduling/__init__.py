"""Many requests answered in one batch, on a thread that owns the models."""

from draftlens.scheduling.jobs import AnswerError, Job, QueueFullError, SchedulerLimits, Update
from draftlens.scheduling.scheduler import Scheduler, check_joins

__all__ = [
    "AnswerError",
    "Job",
    "QueueFullError",
    "Scheduler",
    "SchedulerLimits",
    "Update",
    "check_joins",
]
