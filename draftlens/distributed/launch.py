"""Hosts on this machine: processes that share the weights of a model with this one."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]

from draftlens.core.errors import ConfigError, HostError
from draftlens.distributed.follow import exit_when_lost, follow_and_exit
from draftlens.distributed.group import PATIENCE_SECONDS, START_SECONDS, GlooHosts
from draftlens.lanes.channel import Channel, ClosedError
from draftlens.lanes.parcels import Parcel
from draftlens.lanes.shared_model import ModelParts, share
from draftlens.lanes.spawn import no_interrupts, start_child
from draftlens.models.backbone import Backbone

ADDRESS = "127.0.0.1"

FAREWELL = "error: host 0 has ended while others read a prompt together with it\n"


@dataclass(frozen=True)
class Place:
    """A process' place in a group.

    Args:
        rank, size: which rank, of how many.
        port: of the group's store on this machine.
        patience: as for `GlooHosts`.
    """

    rank: int
    size: int
    port: int
    patience: float


class LocalHosts(GlooHosts):
    """A group of this process, which is rank 0, and further ones that it has started.

    They end with this object, with this process however it ends, and when one of them is lost.

    Args:
        store: the group's store, on this machine.
        children: the other processes.
        patience: as for `GlooHosts`.
    """

    def __init__(self, store: TCPStore, children: Sequence[_Child], patience: float) -> None:
        self._finalizer = weakref.finalize(self, _end, list(children), os.getpid())
        self._children = list(children)
        try:
            super().__init__(store, 0, len(children) + 1, patience, local_device())
        except BaseException:
            self._finalizer()
            raise

    @property
    def processes(self) -> tuple[int, ...]:
        """Process ids of ranks 1 and above."""
        return tuple(child.process.pid for child in self._children)

    def abandon(self, why: str) -> None:
        """See `GlooHosts.abandon`. The other processes hold nothing that could be lost."""
        super().abandon(why)
        self._finalizer()

    def end(self) -> None:
        """End the other processes."""
        self.abandon("the group has ended")


@dataclass(frozen=True)
class _Child:
    channel: Channel
    process: subprocess.Popen[bytes]


def local_device() -> Any:
    """The device of gloo for processes of one machine."""
    return ProcessGroupGloo.create_device(hostname=ADDRESS)


def start(
    backbone: Backbone,
    size: int,
    threads: int = 1,
    patience: float = PATIENCE_SECONDS,
) -> LocalHosts:
    """Start further processes with a model, and let it read its prompts together with them.

    Args:
        backbone: of a model on the CPU. Its weights move to memory that all processes map, and its
            `hosts` are the new group.
        size: number of processes, this one included; at least 2.
        threads: of torch in each new process.
        patience: seconds that a process waits for another one inside an answer.

    Raises:
        ConfigError: the model is not on the CPU, or `size` is too small.
        HostError: a process cannot be started.
    """
    if size < 2:
        raise ConfigError(f"several hosts are two at least, not {size}")
    if backbone.device.type != "cpu" or backbone.is_spread:
        raise ConfigError(
            "hosts are started for models on the CPU only: start the program with torchrun, one "
            "process for each GPU"
        )
    store = TCPStore(ADDRESS, 0, None, is_master=True, timeout=timedelta(seconds=START_SECONDS))
    children: list[_Child] = []
    try:
        parcel = share(backbone.model)
        for rank in range(1, size):
            child = _start_child(threads)
            children.append(child)
            child.channel.send_parcel(_copy(parcel))
            child.channel.send(Place(rank, size, store.port, patience))
        parcel.close()
        for child in children:
            child.channel.receive(START_SECONDS)  # it has loaded its libraries and the model
        hosts = LocalHosts(store, children, patience)
    except (OSError, ClosedError, RuntimeError, TypeError, AttributeError, ValueError) as error:
        _end(children, os.getpid())
        raise HostError(f"the other hosts could not be started: {error}") from error
    except pickle.PicklingError as error:
        _end(children, os.getpid())
        raise HostError(f"the model cannot be sent to other processes: {error}") from error
    backbone.hosts = hosts
    return hosts


def _copy(parcel: Parcel) -> Parcel:
    """The same parcel, whose file is the same memory."""
    return replace(parcel, file=None if parcel.file is None else os.dup(parcel.file))


def _start_child(threads: int) -> _Child:
    channel, theirs = Channel.pair()
    try:
        with no_interrupts():
            process = start_child(
                theirs.fileno(), "draftlens.distributed.launch", threads, FAREWELL
            )
    except OSError:
        channel.close()
        raise
    finally:
        theirs.close()
    return _Child(channel, process)


def _end(children: Sequence[_Child], owner: int) -> None:
    """End processes at once. A fork of their owner only closes its own copies of the channels."""
    for child in children:
        if os.getpid() == owner:
            child.process.kill()
            child.process.wait()
        child.channel.close()


def main(descriptor: int, threads: int) -> None:
    """What a new process runs.

    Args:
        descriptor: of the inherited socket, through which the model and the place come.
        threads: of torch.
    """
    torch.set_num_threads(threads)
    channel = Channel(socket.socket(fileno=descriptor))
    parts: ModelParts = channel.receive(None)
    place: Place = channel.receive(None)
    backbone = Backbone(parts.build())
    channel.send(os.getpid())
    store = TCPStore(ADDRESS, place.port, None, is_master=False)
    hosts = GlooHosts(store, place.rank, place.size, place.patience, local_device(), exit_when_lost)
    follow_and_exit(backbone, hosts)
