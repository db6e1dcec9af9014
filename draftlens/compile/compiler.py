"""Compiles passes beside the process that answers, one after the other."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import threading
import weakref
from collections.abc import Callable
from typing import Protocol

import torch

from draftlens.compile.orders import Built, Order
from draftlens.processes.channel import Channel, ClosedError
from draftlens.processes.child import no_interrupts, start_child

NICENESS = 19
"""Lowest priority, of a process that compiles while another one answers."""

Report = Callable[[Built], None]
"""Receives the result of an order, in the thread that called `Compiler.look`."""


class Compiler(Protocol):
    """Carries out orders."""

    @property
    def missing(self) -> str:
        """Why nothing can be compiled on this machine, in a few words; empty if it can be."""
        ...

    def order(self, order: Order, urgency: Callable[[], int], report: Report) -> None:
        """Have a pass compiled.

        Args:
            order: the pass and where it is to be written.
            urgency: of the orders that wait, the one with the largest number is next.
            report: receives the result.
        """
        ...

    def look(self, timeout: float | None = 0.0) -> None:
        """Report what is done and go on with the next order.

        Args:
            timeout: seconds to wait for the order that is being carried out; None for any time.
        """
        ...


class CompilingProcess:
    """A `Compiler` in a process of its own.

    Tracing a model is work of Python, which would hold up the thread that answers, so a thread
    would not do. The process starts with the first order, ends when nothing is ordered any more,
    and ends at once with this object or with its parent, however that ends.

    Args:
        background: whether it has the lowest priority.
    """

    def __init__(self, background: bool = True) -> None:
        self.background = background
        self._using = threading.RLock()
        self._waiting: list[_Waiting] = []
        self._current: _Waiting | None = None
        self._channel: Channel | None = None
        self._end: weakref.finalize[..., CompilingProcess] | None = None
        self._owner = os.getpid()

    @property
    def missing(self) -> str:
        """See `Compiler.missing`."""
        if os.getpid() != self._owner:
            return "this process is a fork of the one that compiles"
        names = (os.environ.get("CXX", ""), "g++", "clang++")
        if any(name and shutil.which(name) for name in names):
            return ""
        return "there is no C++ compiler (g++ or clang++)"

    def order(self, order: Order, urgency: Callable[[], int], report: Report) -> None:
        """See `Compiler.order`."""
        with self._using:
            self._waiting.append(_Waiting(order, urgency, report))
            self._next()

    def look(self, timeout: float | None = 0.0) -> None:
        """See `Compiler.look`. Nothing is done while another thread is inside."""
        if os.getpid() != self._owner or not self._using.acquire(blocking=timeout != 0):
            return
        try:
            self._take(timeout)
        finally:
            self._using.release()

    def _take(self, timeout: float | None) -> None:
        if self._current is None or self._channel is None:
            return
        try:
            built: Built = self._channel.receive(timeout)
        except TimeoutError:
            return
        except ClosedError:
            built = Built(0.0, "the compiling process has ended")
            self._stop()
        done = self._current
        self._current = None
        self._next()
        done.report(built)

    def _next(self) -> None:
        """Begin with the most urgent order unless one is being carried out."""
        if self._current is not None or os.getpid() != self._owner:
            return
        if not self._waiting:
            self._stop()
            return
        self._current = max(self._waiting, key=lambda waiting: waiting.urgency())
        self._waiting.remove(self._current)
        try:
            self._started().send(self._current.order)
        except (TypeError, AttributeError, OSError, ClosedError, pickle.PicklingError) as error:
            failed = self._current
            self._current = None
            failed.report(Built(0.0, f"no process can compile it: {error}"))
            self._next()

    def _started(self) -> Channel:
        if self._channel is None:
            channel, theirs = Channel.pair()
            try:
                with no_interrupts():
                    process = start_child(
                        theirs.fileno(), "draftlens.compile.child", torch.get_num_threads()
                    )
            except OSError:
                channel.close()
                raise
            finally:
                theirs.close()
            if self.background:
                os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
            self._channel = channel
            self._end = weakref.finalize(self, _end, channel, process, self._owner)
        return self._channel

    def _stop(self) -> None:
        if self._end is not None:
            self._end()
        self._channel = None
        self._end = None


class _Waiting:
    """An order with the questions that belong to it."""

    def __init__(self, order: Order, urgency: Callable[[], int], report: Report) -> None:
        self.order = order
        self.urgency = urgency
        self.report = report


def _end(channel: Channel, process: subprocess.Popen[bytes], owner: int) -> None:
    """End the process at once: a file that it has not finished does not appear. A fork of its owner
    only closes its own copy of the channel."""
    channel.close()
    if os.getpid() == owner:
        process.kill()
        process.wait()
