"""Processes that a call has started to read its prompts: who can reach them, and what becomes of a
call and of those after it when one of them is lost."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from families import FAMILIES, inputs
from stock import LONG, reference, target

import draftlens
from draftlens.core.errors import HostError
from draftlens.models.adapter import Backbone
from draftlens.prefill.spava.hosts import hosts_of
from draftlens.prefill.spava.processes.launch import LocalRanks, _Child, start
from draftlens.prefill.spava.processes.sockets import SocketLinks

pytestmark = [pytest.mark.dist]

FAMILY = FAMILIES[2]
RING = {"name": "ring", "decode": "sharded"}

ATTACK = """
import os, pickle, socket, sys

class Run:
    def __reduce__(self):
        return os.mkdir, (sys.argv[1],)

kept = []
for port in map(int, sys.argv[2:]):
    from datetime import timedelta
    from torch.distributed import TCPStore

    for _ in range(4):
        sock = socket.create_connection(("localhost", port), 5)
        sock.sendall(bytes(8) + pickle.dumps(Run()))
        kept.append(sock)
    try:
        store = TCPStore("localhost", port, None, is_master=False, timeout=timedelta(seconds=5))
        store.set("lost", "a stranger ends the run")
        kept.append(store)
    except Exception as error:
        print(port, error)
"""
"""What a process does that knows only the ports on which others listen."""


class Hostile:
    """Makes a folder where it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


@pytest.fixture(scope="module")
def backbone() -> Iterator[Backbone]:
    """A model that reads prompts by three processes, and by as many new ones after a loss."""
    made = Backbone.of(target(FAMILY))
    start(made, 3, patience=60)
    yield made
    local_hosts(made).end()


def local_hosts(backbone: Backbone) -> LocalRanks:
    hosts = hosts_of(backbone)
    assert isinstance(hosts, LocalRanks)
    return hosts


def streaming(backbone: Backbone) -> draftlens.Stream:
    given = inputs(FAMILY, FAMILY.richest)
    return draftlens.stream(backbone, given, prefill=RING, max_new_tokens=LONG)


def check_answer(backbone: Backbone) -> None:
    """All processes answer as stock `generate` does."""
    assert streaming(backbone).run().tokens == reference(FAMILY, FAMILY.richest, LONG)
    assert hosts_of(backbone).size == 3


def listening(pids: tuple[int, ...]) -> list[int]:
    """Ports on which some processes listen."""
    connections = [one for pid in pids for one in psutil.Process(pid).net_connections("inet")]
    return [one.laddr.port for one in connections if one.status == psutil.CONN_LISTEN]


def test_a_stranger_achieves_nothing(backbone: Backbone, tmp_path: Path) -> None:
    """It tries every port of the processes in the middle of an answer, and there is none."""
    before = listening((os.getpid(),))
    stream = streaming(backbone)
    next(stream)
    hosts = local_hosts(backbone)
    ports = [port for port in listening((os.getpid(), *hosts.processes)) if port not in before]
    mark = tmp_path / "was_run"
    words = [sys.executable, "-c", ATTACK, str(mark), *map(str, ports)]
    subprocess.run(words, check=True, timeout=120)
    assert stream.run().tokens == reference(FAMILY, FAMILY.richest, LONG)
    check_answer(backbone)
    assert hosts_of(backbone) is hosts
    assert not mark.exists()
    assert ports == []


def test_a_fork_has_no_part_in_the_group(backbone: Backbone) -> None:
    """Its calls would answer into those of its parent."""
    hosts = local_hosts(backbone)
    fork = os.fork()
    if not fork:
        is_refused = not hosts.is_usable
        try:
            hosts.gather(torch.zeros(1), [1, 1, 1])
        except HostError as error:
            is_refused &= "this one is a fork of" in str(error)
        os._exit(0 if is_refused else 1)
    _, status = os.waitpid(fork, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    check_answer(backbone)
    assert hosts_of(backbone) is hosts


def test_the_next_call_meets_others(backbone: Backbone) -> None:
    """After an answer that has lost a rank while it was decoded, and said which."""
    hosts = local_hosts(backbone)
    stream = streaming(backbone)
    next(stream)
    os.kill(hosts.processes[1], signal.SIGKILL)
    with pytest.raises(HostError, match=r"host 2 has ended or was stopped .*; the next call"):
        stream.run()
    for pid in hosts.processes:
        assert not psutil.pid_exists(pid)
    check_answer(backbone)
    assert hosts_of(backbone) is not hosts


def test_a_rank_unpickles_nothing_and_says_why_it_ends(backbone: Backbone, tmp_path: Path) -> None:
    """A job is data; what else a rank is sent ends the group."""
    hosts = local_hosts(backbone)
    hostile = Hostile(tmp_path / "was_run")
    hosts.give([hostile, hostile])
    arriving = hosts.gather(torch.zeros(1), [1, 1, 1])
    with pytest.raises(HostError, match=r"host 1 failed: ValueError: .*; the next call starts"):
        arriving.wait()
    assert not hostile.folder.exists()


def test_a_process_is_stopped_or_ends_between_two_calls() -> None:
    """The one is told from a process that works, and the other is not missed by the next call."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        child = _Child(process, socket.socket())
        hosts = LocalRanks(SocketLinks({}), [child], 1, 5.0)
        assert hosts.is_usable
        assert not child.is_silent
        process.send_signal(signal.SIGSTOP)
        while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
            time.sleep(0.01)
        assert child.is_silent
        process.kill()
        process.wait()
        assert child.is_silent
        assert not hosts.is_usable
        hosts.end()
