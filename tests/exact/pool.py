"""Processes that read prompts together with the tests over gloo, as those of torchrun do, shared by
all tests of a module.

One process loads the libraries and the models; the ranks of a group are forks of it.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import torch
from families import FAMILIES, inputs
from stock import target
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore

import draftlens
from draftlens.models.adapter import Backbone
from draftlens.prefill.spava.hosts import ALONE, hosts_of, set_hosts
from draftlens.prefill.spava.processes.jobs import ALLOWED
from draftlens.prefill.spava.processes.launch import start
from draftlens.prefill.spava.processes.process_group import GlooRanks
from draftlens.prefill.spava.processes.worker_loop import exit_when_lost, run_jobs_and_exit
from draftlens.processes.channel import Channel
from draftlens.processes.child import start_child

ADDRESS = "127.0.0.1"

START = 120.0
"""Seconds until the libraries are loaded."""


@dataclass(frozen=True)
class Order:
    """What a new rank is told.

    Args:
        family: number of the family whose model it has.
        rank, size: which rank, of how many.
        port, prefix: of the group's store.
        patience: of the group.
        errors: file for its standard error.
    """

    family: int
    rank: int
    size: int
    port: int
    prefix: str
    patience: float
    errors: Path


@dataclass(frozen=True)
class Wait:
    """Asks for the exit status of a rank."""

    pid: int


@dataclass(frozen=True)
class Lead:
    """Asks for a process that starts another one and answers together with it for ever.

    Args:
        family: number of the family whose model it has.
        file: where it writes the id of the other process, once both have answered.
    """

    family: int
    file: Path


@dataclass(frozen=True)
class CountKept:
    """Job: tell rank 0 how many rows a rank keeps."""

    def run(self, backbone: Backbone, hosts: GlooRanks) -> None:
        """Send the number."""
        hosts.gather(torch.tensor([len(hosts.kept)])).wait()


def gloo_device() -> Any:
    """The device of gloo for processes of one machine."""
    return ProcessGroupGloo.create_device(hostname=ADDRESS)


class Pool:
    """The process that forks ranks.

    Args:
        folder: for what they write.

    Attributes:
        pids: process ids of the last group's ranks above 0.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pids: list[int] = []
        self._store = TCPStore(ADDRESS, 0, None, is_master=True, timeout=timedelta(seconds=START))
        self._channel, theirs = Channel.pair()
        self._process = start_child(theirs.fileno(), "pool", 1)
        theirs.close()
        self._number = 0

    @contextmanager
    def reading(self, family: int, size: int, patience: float = 60.0) -> Iterator[Backbone]:
        """A family's model, which reads prompts by `size` processes inside the context."""
        backbone = Backbone.of(target(FAMILIES[family]))
        if size == 1:
            yield backbone
            return
        self._number += 1
        prefix = f"group {self._number}"
        self.pids = []
        for rank in range(1, size):
            errors = self.errors_of(rank)
            order = Order(family, rank, size, self._store.port, prefix, patience, errors)
            self.pids.append(self._ask(order))
        store = PrefixStore(prefix, self._store)
        hosts = GlooRanks(store, 0, size, patience, gloo_device())
        set_hosts(backbone, hosts)
        try:
            yield backbone
        finally:
            set_hosts(backbone, ALONE)
            hosts.end()

    def errors_of(self, rank: int) -> Path:
        """The file of what a rank of the last group has written on standard error."""
        return self.folder / f"{self._number}.{rank}"

    def status_of(self, rank: int) -> int:
        """Wait until a rank of the last group has ended: its exit status, negative for a signal."""
        return int(self._ask(Wait(self.pids[rank - 1])))

    def status_of_process(self, pid: int) -> int:
        """The same of any process that was forked."""
        return int(self._ask(Wait(pid)))

    def leading(self, family: int) -> tuple[int, int]:
        """The ids of a process that answers for ever, and of the one that it has started."""
        self._number += 1
        file = self.folder / f"{self._number}.lead"
        first = self._ask(Lead(family, file))
        deadline = time.monotonic() + START
        while not file.exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        return first, int(file.read_text())

    def num_kept(self, backbone: Backbone) -> int:
        """How many rows rank 1 keeps of those that several hosts hold."""
        hosts = hosts_of(backbone)
        with hosts.answering():
            hosts.give([CountKept()] * (hosts.size - 1))
            arrived = hosts.gather(torch.tensor([0]), [1] * hosts.size).wait()
        return int(arrived[1])

    def close(self) -> None:
        """End all processes."""
        self._process.kill()
        self._process.wait()
        self._channel.close()

    def _ask(self, message: Any) -> Any:
        self._channel.send(message)
        return self._channel.receive(START)


def main(descriptor: int, threads: int) -> None:
    """What the process runs."""
    torch.set_num_threads(threads)
    channel = Channel(socket.socket(fileno=descriptor))
    while True:
        message = channel.receive(None)
        if isinstance(message, Wait):
            _, status = os.waitpid(message.pid, 0)
            channel.send(os.waitstatus_to_exitcode(status))
            continue
        backbone = _backbone(message.family)
        pid = os.fork()
        if not pid:
            os.close(descriptor)
            if isinstance(message, Lead):
                _lead(backbone, message)
            _follow(backbone, message)
        channel.send(pid)


def _lead(backbone: Backbone, order: Lead) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    family = FAMILIES[order.family]
    try:
        hosts = start(backbone, 2)
        while True:
            draftlens.generate(
                backbone, inputs(family, family.richest), prefill="ring", max_new_tokens=4
            )
            unfinished = order.file.with_suffix(".unfinished")
            unfinished.write_text(str(hosts.processes[0]))
            unfinished.rename(order.file)
    except KeyboardInterrupt:
        os._exit(130)


def _follow(backbone: Backbone, order: Order) -> None:
    with open(order.errors, "w") as errors:
        os.dup2(errors.fileno(), 2)
    store = PrefixStore(order.prefix, TCPStore(ADDRESS, order.port, None, is_master=False))
    hosts = GlooRanks(
        store,
        order.rank,
        order.size,
        order.patience,
        gloo_device(),
        exit_when_lost,
        [*ALLOWED, CountKept],
    )
    run_jobs_and_exit(backbone, hosts)


@cache
def _backbone(family: int) -> Backbone:
    return Backbone(target(FAMILIES[family]))
