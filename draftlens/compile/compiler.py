"""Compiles passes in a separate process, which ends when they are done."""

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
    """A pass to compile into the file `path`."""

    skeleton: Skeleton
    shape: PassShape
    path: Path


@dataclass(frozen=True)
class Built:
    """An executed order: its seconds, and why there is no file; empty if there is one."""

    seconds: float
    failure: str = ""


class Compiler:
    """Compiles passes in a separate process and waits for them: tracing a model in this process
    would block other threads, and the compiler takes its folder and the mode of its files from
    process-wide state, which belongs to the caller."""

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
    """The compiling process, which ends at once with the context or with this process."""
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
