"""Compiles passes in a process of its own, which ends when they are done."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from draftlens.compile.shapes import PassShape
from draftlens.compile.skeleton import Skeleton
from draftlens.processes.channel import Channel, ClosedError
from draftlens.processes.child import connected, start_child


@dataclass(frozen=True)
class Order:
    """A pass to compile.

    Args:
        skeleton: of the model.
        shape: the kind of pass.
        path: of the file to write.
    """

    skeleton: Skeleton
    shape: PassShape
    path: Path


@dataclass(frozen=True)
class Built:
    """An order was carried out.

    Args:
        seconds: that it took.
        failure: why there is no file; empty if there is one.
    """

    seconds: float
    failure: str = ""


class Compiler:
    """Compiles passes in a process of its own and waits for them.

    Tracing a model is work of Python, which would hold up other threads that answer, and the
    compiler reads its folder and the mode of its files from the state of a process, which belongs
    to the caller.
    """

    def __init__(self) -> None:
        self._owner = os.getpid()

    @property
    def missing(self) -> str:
        """Why nothing can be compiled on this machine, in a few words; empty if it can be."""
        if os.getpid() != self._owner:
            return "this process is a fork of the one that compiles"
        names = (os.environ.get("CXX", ""), "g++", "clang++")
        if any(name and shutil.which(name) for name in names):
            return ""
        return "there is no C++ compiler (g++ or clang++)"

    def build(self, orders: Sequence[Order]) -> list[Built]:
        """Carry out some orders, one after the other."""
        if not orders:
            return []
        built: list[Built] = []
        try:
            with _started() as channel:
                for order in orders:
                    channel.send(order)
                    built.append(channel.receive(None))
        except ClosedError:
            failure = "the compiling process has ended"
        except (TypeError, AttributeError, OSError, pickle.PicklingError) as error:
            failure = f"no process can compile it: {error}"
        else:
            return built
        return built + [Built(0.0, failure)] * (len(orders) - len(built))


@contextmanager
def _started() -> Iterator[Channel]:
    """The compiling process, which ends at once with the context or with this process: a file that
    it has not finished does not appear."""
    threads = torch.get_num_threads()
    start = partial(start_child, module="draftlens.compile.child", threads=threads)
    ours, process = connected(start)
    channel = Channel(ours)
    try:
        yield channel
    finally:
        channel.close()
        process.kill()
        process.wait()
