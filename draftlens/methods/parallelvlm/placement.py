"""Where the draft runs."""

from __future__ import annotations

import logging

from draftlens.methods.parallelvlm.cores import usable_cores
from draftlens.methods.parallelvlm.draft_process import process_of
from draftlens.methods.parallelvlm.draft_thread import thread_of
from draftlens.methods.parallelvlm.link import Link, WorkerLostError
from draftlens.models.adapter import Backbone

logger = logging.getLogger("draftlens")


def link_of(drafting: Backbone) -> Link | None:
    """The way to the worker of a draft model, which is started if necessary.

    A model on a GPU drafts in a thread, a model on the CPU in a process of its own. None means that
    drafting in a worker of its own is not possible; a log message says why.

    Args:
        drafting: the model that drafts; the target itself if it drafts for itself.
    """
    if drafting.device.type == "cuda":
        return thread_of(drafting)
    why = _obstacle(drafting)
    if why is None:
        try:
            with drafting.alone():  # its weights may move
                return process_of(drafting.model)
        except WorkerLostError as error:
            why = str(error)
    logger.warning("the schedule is serial: %s", why)
    return None


def _obstacle(drafting: Backbone) -> str | None:
    """Why a model cannot draft in another process; None if it can."""
    if drafting.is_spread:
        return "the draft is spread over several devices or offloaded"
    if drafting.device.type != "cpu":
        return f"a draft on {drafting.device.type} cannot run beside the target"
    if usable_cores() < 2:
        return "this process may use one core only"
    return None
