"""Drafting processes that are forked from one that has loaded its libraries, so that tests and
benchmarks can start many of them, and that can fail in the middle of a message."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["__main__", "draftlens.methods.parallelvlm.child"])


@dataclass(frozen=True)
class Fault:
    """A drafting process that strikes itself in the middle of a message.

    Args:
        messages: how many messages it sends whole before that.
        part: share of the next message's bytes that it still sends, from 0 to 1.
        how: the signal.
        note: a file that then receives the moment, in seconds of `time.perf_counter`.
    """

    messages: int
    part: float
    how: signal.Signals
    note: Path


class ForkedProcess:
    """Takes the place of `subprocess.Popen` in `draftlens.methods.parallelvlm.draft_process`.

    Args:
        descriptor: of the socket that the drafting process inherits.
        fault: what goes wrong in it; None for nothing.
    """

    def __init__(self, descriptor: int, fault: Fault | None = None) -> None:
        with socket.socket(fileno=os.dup(descriptor)) as theirs:
            self._process = _SERVER.Process(target=_draft, args=(theirs, fault), daemon=True)
            self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> Any:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("draft", timeout or 0.0)
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()


def _draft(theirs: socket.socket, fault: Fault | None) -> None:
    from draftlens.methods.parallelvlm import child

    if fault is not None:
        _install(fault)
    child.main(theirs.detach(), 1)


def _install(fault: Fault) -> None:
    """Let the channel of this process fail."""
    from draftlens.methods.parallelvlm import child
    from draftlens.processes.channel import Channel

    class FailingChannel(Channel):
        """Sends some messages, and then a part of one."""

        num_sent = 0

        def _send_some(self, message: Any) -> None:
            if self.num_sent == fault.messages:
                # At least one byte has arrived, and at least one never will.
                count = round(fault.part * len(message.unsent))
                self._socket.send(message.unsent[: min(max(count, 1), len(message.unsent) - 1)])
                fault.note.write_text(repr(time.perf_counter()))
                os.kill(os.getpid(), fault.how)
            self.num_sent += 1
            super()._send_some(message)

    vars(child)["Channel"] = FailingChannel
