"""Which processes read prompts together with this one: torchrun's, new ones, or none."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from draftlens.core.errors import ConfigError
from draftlens.core.locks import ForkLock
from draftlens.core.process_group import ALONE, Hosts
from draftlens.models.adapter import Backbone
from draftlens.models.model_state import Slot
from draftlens.prefill.base import NO_INPUTS, check_is_number_of_hosts
from draftlens.prefill.spava.processes.launch import LocalHosts, start
from draftlens.prefill.spava.processes.torchrun import is_launched, join

MOST_HOSTS = 256
"""Most processes that are started to read prompts."""


def check_hosts(hosts: Any) -> None:
    """Refuse a number of processes that makes no sense, before minutes of loading.

    Args:
        hosts: number of processes, or None for those of torchrun or this one alone.

    Raises:
        ConfigError: it is no number of at least 1, or torchrun has started another number of
            processes.
    """
    check_is_number_of_hosts(hosts)
    if hosts is None:
        return
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

    Under torchrun this returns on rank 0 only (`distributed.join`). Otherwise new processes are
    started, and the threads of torch are divided among all. A model that has met others before
    stays with them. If one of those was lost, as many are started anew; under torchrun they cannot
    be, and the call fails with the sentence that says so.

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
    if backbone.hosts.size == 1 or not backbone.hosts.is_usable:
        backbone.hosts = _group_of(backbone, hosts, inputs)
    if hosts is not None and hosts != backbone.hosts.size:
        raise ConfigError(
            f"the model reads its prompts with {backbone.hosts.size} hosts already, and hosts is "
            f"{hosts}: leave it out"
        )


_GROUP = Slot[Hosts]("ranks that read prompts together")

_STARTING = ForkLock()


def _group_of(backbone: Backbone, hosts: int | None, inputs: Mapping[str, Any]) -> Hosts:
    """The group of a model, which all calls with it share; a new one if it has none that can be
    used."""
    with _STARTING:
        group = _GROUP.get(backbone.model) or backbone.hosts
        if group.size > 1 and (group.is_usable or not isinstance(group, LocalHosts)):
            return group
        group = _new_group(backbone, hosts, inputs, group)
        if group.size > 1:
            _GROUP.set(backbone.model, group)
        return group


def _new_group(
    backbone: Backbone, hosts: int | None, inputs: Mapping[str, Any], lost: Hosts
) -> Hosts:
    """A group of a model.

    Args:
        backbone, hosts, inputs: as for `meet`.
        lost: the group that it had before.
    """
    if is_launched():
        return join(backbone, digest=digest_of(inputs))
    threads = torch.get_num_threads()
    if isinstance(lost, LocalHosts):
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
