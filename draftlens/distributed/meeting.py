"""Which processes read prompts together with this one: torchrun's, new ones, or none."""

from __future__ import annotations

import os
from typing import Any

import torch

from draftlens.core.errors import ConfigError
from draftlens.distributed.launch import start
from draftlens.distributed.torchrun import is_launched, join
from draftlens.models.backbone import Backbone


def check_hosts(hosts: Any, prefill: Any) -> None:
    """Refuse a number of hosts that makes no sense, before minutes of loading.

    Args:
        hosts: number of processes, or None for those of torchrun or this one alone.
        prefill: that was requested; None if none was.

    Raises:
        ConfigError: it is no number of at least 1, no prefill would use the hosts, or torchrun has
            started another number of processes.
    """
    if hosts is None:
        return
    if type(hosts) is not int or hosts < 1:
        raise ConfigError(f"hosts must be a whole number of at least 1, not {hosts!r}")
    if hosts > 1 and prefill is None:
        raise ConfigError("several hosts read prompts by prefill 'ring' or 'spava': name one")
    if is_launched() and hosts != int(os.environ["WORLD_SIZE"]):
        raise ConfigError(
            f"torchrun has started {os.environ['WORLD_SIZE']} processes, and hosts is {hosts}: "
            "leave it out"
        )


def meet(backbone: Backbone, hosts: int | None) -> None:
    """Let a model read its prompts together with other processes, if there are any.

    Under torchrun this returns on rank 0 only (`distributed.join`). Otherwise new processes are
    started, and the threads of torch are divided among all.

    Args:
        backbone: of the model.
        hosts: checked by `check_hosts`.

    Raises:
        ConfigError, HostError: as `distributed.join` and `distributed.start`.
    """
    if is_launched():
        join(backbone)
    elif hosts is not None and hosts > 1:
        threads = max(1, torch.get_num_threads() // hosts)
        torch.set_num_threads(threads)
        start(backbone, hosts, threads)
