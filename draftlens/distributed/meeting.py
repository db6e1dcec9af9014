"""Which processes read prompts together with this one: torchrun's, new ones, or none."""

from __future__ import annotations

import hashlib
import os
import weakref
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from draftlens.core.errors import ConfigError
from draftlens.distributed.group import GlooHosts
from draftlens.distributed.launch import start
from draftlens.distributed.torchrun import is_launched, join
from draftlens.models.backbone import Backbone

_GROUPS: weakref.WeakKeyDictionary[Any, GlooHosts] = weakref.WeakKeyDictionary()
"""The group of each model, so that all calls with it share one."""

NO_INPUTS: Mapping[str, Any] = MappingProxyType({})


MOST_HOSTS = 256
"""Most processes that are started to read prompts."""


def check_hosts(hosts: Any, prefill: Any) -> None:
    """Refuse a number of hosts that makes no sense, before minutes of loading.

    Args:
        hosts: number of processes, or None for those of torchrun or this one alone.
        prefill: that was requested; None if none was, or one that uses no hosts.

    Raises:
        ConfigError: it is no number of at least 1, no prefill would use the hosts, or torchrun has
            started another number of processes.
    """
    if hosts is None:
        return
    if type(hosts) is not int or hosts < 1:
        raise ConfigError(f"hosts must be a whole number of at least 1, not {hosts!r}")
    if hosts > MOST_HOSTS:
        raise ConfigError(f"hosts must be at most {MOST_HOSTS}, not {hosts}: each is a process")
    if hosts > 1 and prefill is None:
        raise ConfigError("several hosts read prompts by prefill 'ring' or 'spava': name one")
    if is_launched() and hosts != int(os.environ["WORLD_SIZE"]):
        raise ConfigError(
            f"torchrun has started {os.environ['WORLD_SIZE']} processes, and hosts is {hosts}: "
            "leave it out"
        )


def meet(
    backbone: Backbone, hosts: int | None = None, inputs: Mapping[str, Any] = NO_INPUTS
) -> None:
    """Let a model read its prompts together with other processes, if there are any.

    Under torchrun this returns on rank 0 only (`distributed.join`). Otherwise new processes are
    started, and the threads of torch are divided among all. A model that has met others before
    stays with them.

    Args:
        backbone: of the model.
        hosts: checked by `check_hosts`.
        inputs: what this rank asks, which must be the same on all ranks; empty if nothing yet.

    Raises:
        ConfigError: the model reads its prompts with another number of processes already, or as
            `distributed.start`.
        InputError: ranks of torchrun ask different things.
        HostError: the others did not come.
    """
    if backbone.hosts.size == 1:
        _find(backbone, hosts, inputs)
    if hosts is not None and hosts != backbone.hosts.size:
        raise ConfigError(
            f"the model reads its prompts with {backbone.hosts.size} hosts already, and hosts is "
            f"{hosts}: leave it out"
        )


def _find(backbone: Backbone, hosts: int | None, inputs: Mapping[str, Any]) -> None:
    """Set the group of a backbone that has none."""
    group = _GROUPS.get(backbone.model)
    if group is None or (group.lost is not None and not is_launched()):
        group = _new_group(backbone, hosts, inputs)
    if group is not None:
        _GROUPS[backbone.model] = group
        backbone.hosts = group


def _new_group(
    backbone: Backbone, hosts: int | None, inputs: Mapping[str, Any]
) -> GlooHosts | None:
    if is_launched():
        return join(backbone, digest=digest_of(inputs))
    if hosts is None or hosts == 1:
        return None
    threads = max(1, torch.get_num_threads() // hosts)
    torch.set_num_threads(threads)
    return start(backbone, hosts, threads)


def digest_of(inputs: Mapping[str, Any]) -> str:
    """A short text that is equal for equal tensors."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(inputs):
        value = inputs[name]
        if isinstance(value, Tensor):
            digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
            flat = value.detach().cpu().contiguous().flatten()
            digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
