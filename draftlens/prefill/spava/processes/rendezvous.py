"""Finds the processes that read prompts together with this one: torchrun's, new ones, or none."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from draftlens.core.errors import ConfigError
from draftlens.core.locks import ForkLock
from draftlens.core.options import shown
from draftlens.models.adapter import Backbone
from draftlens.models.model_state import Slot
from draftlens.prefill.base import NO_INPUTS
from draftlens.prefill.spava.hosts import ALONE, Hosts, hosts_of, set_hosts
from draftlens.prefill.spava.processes.launch import LocalRanks, start
from draftlens.prefill.spava.processes.torchrun import is_launched, join

MOST_HOSTS = 256
"""Most processes that are started to read prompts."""


def check_hosts(hosts: Any) -> None:
    """Raise `ConfigError` before minutes of loading unless `hosts` is None (those of torchrun, or
    this process alone) or a number of at least 1 that agrees with torchrun."""
    if hosts is None:
        return
    if type(hosts) is not int or hosts < 1:
        raise ConfigError(f"hosts must be a whole number of at least 1, not {shown(hosts)}")
    if hosts > MOST_HOSTS:
        raise ConfigError(f"hosts must be at most {MOST_HOSTS}, not {hosts}: each is a process")
    if is_launched() and hosts != int(os.environ["WORLD_SIZE"]):
        raise ConfigError(
            f"torchrun has started {os.environ['WORLD_SIZE']} processes, and hosts is {hosts}: "
            "leave it out"
        )


def meet(
    backbone: Backbone, hosts: int | None = None, inputs: Mapping[str, Any] = NO_INPUTS
) -> None:
    """Let a model read its prompts together with other processes, if there are any.

    Under torchrun this returns on rank 0 only (`torchrun.join`). Otherwise new processes are
    started, and the threads of torch are divided among all. A model keeps its group. If one of its
    processes was lost, as many are started again; under torchrun the call fails instead. `inputs`
    are those of this rank's request, empty if there is none yet.

    Raises:
        ConfigError: the model reads its prompts with another number of processes already, or as
            `launch.start`.
        InputError: the inputs differ between ranks of torchrun.
        HostError: the others did not come.
    """
    group = hosts_of(backbone)
    if group.size == 1 or not group.is_usable:
        group = _group_of(backbone, hosts, inputs)
        set_hosts(backbone, group)
    if hosts is not None and hosts != group.size:
        raise ConfigError(
            f"the model reads its prompts with {group.size} hosts already, and hosts is {hosts}: "
            "leave it out"
        )


_GROUP = Slot[Hosts]("ranks that read prompts together")

_STARTING = ForkLock()


def _group_of(backbone: Backbone, hosts: int | None, inputs: Mapping[str, Any]) -> Hosts:
    """The group of a model, shared by all calls; a new one if there is none that can be used."""
    with _STARTING:
        group = _GROUP.get(backbone.model) or hosts_of(backbone)
        if group.size > 1 and (group.is_usable or not isinstance(group, LocalRanks)):
            return group
        group = _new_group(backbone, hosts, inputs, group)
        if group.size > 1:
            _GROUP.set(backbone.model, group)
        return group


def _new_group(
    backbone: Backbone, hosts: int | None, inputs: Mapping[str, Any], lost: Hosts
) -> Hosts:
    """A group of a model, in place of `lost`; the other arguments are as for `meet`."""
    if is_launched():
        return join(backbone, digest=digest_of(inputs))
    threads = torch.get_num_threads()
    if isinstance(lost, LocalRanks):
        lost.end()
        threads = lost.threads * lost.size  # they were divided then
        hosts = hosts or lost.size
    if hosts is None or hosts == 1:
        return ALONE
    each = max(1, threads // hosts)
    group = start(backbone, hosts, each)
    torch.set_num_threads(each)
    return group


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
