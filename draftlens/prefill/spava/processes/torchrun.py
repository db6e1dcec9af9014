"""The group of processes that torchrun has started."""

from __future__ import annotations

import atexit
import os
from typing import Any

import torch
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from draftlens.core.errors import ConfigError, HostError, InputError
from draftlens.models.adapter import Backbone
from draftlens.prefill.spava.hosts import set_hosts
from draftlens.prefill.spava.processes.heartbeat import ignore_loss
from draftlens.prefill.spava.processes.process_group import PATIENCE_SECONDS, GlooRanks
from draftlens.prefill.spava.processes.worker_loop import exit_when_lost, run_jobs_and_exit


def is_launched() -> bool:
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def own_device(device: str | None) -> str | None:
    """The device of this rank's model (as for `draftlens.load`): under torchrun each process of a
    machine has a GPU of its own, unless another device is named."""
    if not is_launched() or device not in (None, "cuda") or not torch.cuda.is_available():
        return device
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}"


def join(backbone: Backbone, patience: float = PATIENCE_SECONDS, digest: str = "") -> GlooRanks:
    """Let the processes of torchrun read prompts together; each calls this with its own copy of the
    same model, and the digest of its request.

    On rank 0 it returns, and `hosts_of` the backbone is the group. The other ranks run the jobs of
    rank 0 until that ends, and then exit with status 0. So everything after this call runs on rank
    0 only.

    Raises:
        HostError: the others did not come.
        InputError: the requests of the ranks differ.
        ConfigError: they have joined with another model already.
    """
    try:
        store, rank, size = next(rendezvous("env://"))
        group_store = PrefixStore("draftlens", store)
        check_first(group_store, rank)
        check_equal(group_store, rank, size, digest)
        on_lost = exit_when_lost if rank else ignore_loss
        hosts = GlooRanks(group_store, rank, size, patience, None, on_lost)
    except RuntimeError as error:
        raise HostError(f"the hosts that torchrun started did not meet: {error}") from error
    if rank:
        run_jobs_and_exit(backbone, hosts)
    atexit.register(hosts.end)
    set_hosts(backbone, hosts)
    return hosts


def check_first(store: Any, rank: int) -> None:
    """Raise `ConfigError` for a second model, for which the other ranks would never come."""
    if store.add(f"joined/{rank}", 1) > 1:
        raise ConfigError(
            "the processes of torchrun read prompts with one model, and they have met with another "
            "one: use prefill 'full' for this model"
        )


def check_equal(store: Any, rank: int, size: int, digest: str) -> None:
    """Raise `InputError` on all ranks if a rank's request differs from that of rank 0."""
    store.set(f"asked/{rank}", digest)
    digests = [store.get(f"asked/{peer}").decode() for peer in range(size)]
    different = [peer for peer in range(size) if digests[peer] != digests[0]]
    if different:
        raise InputError(
            f"host {different[0]} was given other inputs than host 0: under torchrun all processes "
            "ask the same, and rank 0 answers"
        )
