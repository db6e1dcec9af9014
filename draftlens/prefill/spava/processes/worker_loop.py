"""The loop of ranks above 0: run jobs of rank 0 until it ends."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from draftlens.core.errors import HostError
from draftlens.models.adapter import Backbone
from draftlens.prefill.spava.processes.process_group import GroupRanks


def follow(backbone: Backbone, hosts: GroupRanks) -> None:
    """Run the jobs of rank 0 until there are no more. Raises `HostError` if a rank is lost."""
    while True:
        job = hosts.next_job(backbone.device)
        if job is None:
            return
        job.run(backbone, hosts)


def run_jobs_and_exit(backbone: Backbone, hosts: GroupRanks) -> NoReturn:
    """The same, then end the process: with status 0 after an orderly end of rank 0, else with
    status 2 and one sentence on standard error."""
    try:
        follow(backbone, hosts)
    except HostError as error:
        _exit(2, str(error))
    except Exception as error:
        hosts.abandon(f"host {hosts.rank} failed: {type(error).__name__}: {error}")
        _exit(2, str(hosts.lost))
    _exit(0)


def exit_when_lost(why: str) -> NoReturn:
    """End a rank above 0 because another rank has found that the group is lost."""
    _exit(2, why)


def _exit(status: int, sentence: str = "") -> NoReturn:
    """Exit at once: an orderly exit could wait for threads of gloo."""
    if sentence:
        print(f"error: {' '.join(sentence.split())}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(status)
