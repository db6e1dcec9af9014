"""Ranks on this machine: processes that share the weights of a model with this one.

Parent and children exchange messages over sockets that the children inherit. Nothing listens, so no
other process can reach them. The parent pickles the model and sets the code that its children run;
everything else is tensors and plain data (`prefill.spava.processes.jobs`).
"""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import weakref
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial

import psutil
import torch

from draftlens.core.errors import ConfigError, HostError
from draftlens.models.adapter import Backbone
from draftlens.prefill.spava.hosts import set_hosts
from draftlens.prefill.spava.processes.heartbeat import Signs
from draftlens.prefill.spava.processes.process_group import (
    PATIENCE_SECONDS,
    START_SECONDS,
    GroupRanks,
)
from draftlens.prefill.spava.processes.sockets import SocketLinks, mesh
from draftlens.prefill.spava.processes.worker_loop import run_jobs_and_exit
from draftlens.processes.channel import Channel, ClosedError
from draftlens.processes.child import connected, start_child
from draftlens.processes.shared_model import ModelParts, share
from draftlens.processes.shared_tensors import Parcel

FAREWELL = "error: host 0 has ended while others read a prompt together with it\n"

READY = b"+"
"""Sent by a child that has loaded its libraries and the model."""

LONGEST_SENTENCE = 4096
"""Bytes of the last sentence of a child."""

REPORTED = 2
"""Exit status of a child that has reported why it ends."""

ENDING_SECONDS = 2.0
"""Time that a process needs to end after its sockets have closed."""


@dataclass(frozen=True)
class LaunchPlace:
    """A process' place in a group; `sockets` are descriptors by the rank of the other side."""

    rank: int
    size: int
    sockets: Mapping[int, int]
    patience: float


@dataclass(frozen=True)
class _Child:
    """A child process, with the socket that carries its model, its place and its status."""

    process: subprocess.Popen[bytes]
    control: socket.socket

    @property
    def is_silent(self) -> bool:
        """Whether it is stopped, or has ended without a reason."""
        status = self.process.poll()
        if status is not None:
            return status != REPORTED
        return psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED

    def wait_until_ready(self) -> None:
        """Wait until the model is loaded; raise `OSError` if it ended or takes too long."""
        self.control.settimeout(START_SECONDS)
        if self.control.recv(len(READY)) != READY:
            raise ConnectionResetError(f"process {self.process.pid} has ended")

    def told(self) -> str:
        """The last sentence of an ended process; empty if there is none."""
        self.control.setblocking(False)
        with suppress(OSError):
            return self.control.recv(LONGEST_SENTENCE).decode(errors="replace")
        return ""


@dataclass(frozen=True)
class _Children(Signs):
    """Rank 0 observes its children (ranks 1 and above, in order)."""

    children: Sequence[_Child]
    links: SocketLinks

    def silent(self) -> list[int]:
        for rank in self.links.closed:
            with suppress(subprocess.TimeoutExpired):
                self.children[rank - 1].process.wait(ENDING_SECONDS)
        return [rank for rank, child in enumerate(self.children, 1) if child.is_silent]

    def tell(self, why: str) -> str:
        """`Signs.tell`. The children are ended instead."""
        if self.silent():
            return why
        return next(filter(None, (child.told() for child in self.children)), why)


@dataclass(frozen=True)
class _Parent(Signs):
    """Ranks above 0 report to rank 0 over `control`."""

    control: socket.socket
    links: SocketLinks

    def silent(self) -> list[int]:
        return self.links.closed

    def tell(self, why: str) -> str:
        self.control.settimeout(ENDING_SECONDS)
        with suppress(OSError):
            self.control.sendall(why.encode()[:LONGEST_SENTENCE])
        return why


class LocalRanks(GroupRanks):
    """A group of this process, which is rank 0, and further ones that it has started. They end with
    this object, with this process however it ends, and when any of them is lost."""

    remedy = "; the next call starts new ones"

    def __init__(
        self, links: SocketLinks, children: Sequence[_Child], threads: int, patience: float
    ) -> None:
        super().__init__(0, len(children) + 1, patience, links, _Children(children, links))
        self.threads = threads
        self._children = children
        self._finalizer = weakref.finalize(self, _end, links, children, os.getpid())

    @property
    def processes(self) -> tuple[int, ...]:
        """Process ids of ranks 1 and above."""
        return tuple(child.process.pid for child in self._children)

    @property
    def is_usable(self) -> bool:
        """`Hosts.is_usable`. A process may have ended since the last answer."""
        return self.lost is None and all(child.process.poll() is None for child in self._children)

    def abandon(self, why: str) -> None:
        """`GroupRanks.abandon`. The other processes hold nothing that could be lost."""
        super().abandon(why)
        self._finalizer()

    def leave_to_parent(self) -> None:
        super().leave_to_parent()
        self._finalizer()

    def end(self) -> None:
        self.abandon("the group has ended")


def start(
    backbone: Backbone,
    size: int,
    threads: int = 1,
    patience: float = PATIENCE_SECONDS,
) -> LocalRanks:
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
    own_sockets, *rank_sockets = mesh(size)
    links = SocketLinks(own_sockets)
    children: list[_Child] = []
    try:
        with closing(share(backbone.model)) as parcel:
            for rank, sockets in enumerate(rank_sockets, 1):
                descriptors = {peer: sock.fileno() for peer, sock in sockets.items()}
                children.append(_start_child(list(descriptors.values()), threads))
                channel = Channel(children[-1].control)
                channel.send_parcel(_copy(parcel))
                channel.send(LaunchPlace(rank, size, descriptors, patience))
                channel.flush(START_SECONDS)
        # So that a rank sees the end of another one: no open copy is left here.
        _close(rank_sockets)
        for child in children:
            child.wait_until_ready()
    except pickle.PicklingError as error:
        _end(links, children, os.getpid())
        raise HostError(f"the model cannot be sent to other processes: {error}") from error
    except (OSError, ClosedError, TypeError, AttributeError, ValueError) as error:
        _end(links, children, os.getpid())
        raise HostError(f"the other hosts could not be started: {error}") from error
    except BaseException:
        _end(links, children, os.getpid())
        raise
    finally:
        _close(rank_sockets)
    hosts = LocalRanks(links, children, threads, patience)
    set_hosts(backbone, hosts)
    return hosts


def _copy(parcel: Parcel) -> Parcel:
    """The same parcel with its own descriptor of the same memory."""
    return replace(parcel, file=None if parcel.file is None else os.dup(parcel.file))


def _start_child(sockets: Sequence[int], threads: int) -> _Child:
    module = "draftlens.prefill.spava.processes.launch"
    start = partial(start_child, module=module, threads=threads, farewell=FAREWELL, further=sockets)
    control, process = connected(start)
    return _Child(process, control)


def _close(others: Sequence[Mapping[int, socket.socket]]) -> None:
    for sockets in others:
        for sock in sockets.values():
            sock.close()


def _end(links: SocketLinks, children: Sequence[_Child], owner: int) -> None:
    """End processes at once. A fork of their owner only closes its own copies of the sockets."""
    for child in children:
        if os.getpid() == owner:
            child.process.kill()
            child.process.wait()
        child.control.close()
    links.close()


def main(descriptor: int, threads: int) -> None:
    """Entry point of a new process, which gets model and place over the inherited socket."""
    torch.set_num_threads(threads)
    control = socket.socket(fileno=descriptor)
    channel = Channel(control)
    parts: ModelParts = channel.receive(None)
    place: LaunchPlace = channel.receive(None)
    backbone = Backbone(parts.build())
    links = SocketLinks({rank: socket.socket(fileno=fd) for rank, fd in place.sockets.items()})
    hosts = GroupRanks(place.rank, place.size, place.patience, links, _Parent(control, links))
    control.sendall(READY)
    run_jobs_and_exit(backbone, hosts)
