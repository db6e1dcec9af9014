"""Peak memory of a call.

On CUDA the peak is that of torch's allocations on all devices together. Elsewhere it is the
resident memory of the whole process and of the processes that worked for the call. Linux records
the highest value of each and can reset the record, so no thread has to poll it. The highest values
of several processes are added, although they may have been reached at different times, and pages
that they share count in each: the sum is an upper bound. On other systems only the highest value
since this process began is available.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

CUDA = "allocated by torch on CUDA"
RESIDENT = "resident memory of the process and its workers"
SINCE_START = "highest resident memory since the process began"

PROCESSES = Path("/proc")
SELF = "self"
"""The name of this process among `PROCESSES`."""


@dataclass(frozen=True)
class Usage:
    """Memory of a call.

    Args:
        start: bytes in use before it.
        peak: the largest number of bytes in use during it.
    """

    start: int
    peak: int


class Peak:
    """Highest memory between `start` and `stop`.

    Attributes:
        kind: what is measured: CUDA, RESIDENT or SINCE_START.
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self.devices = [device for device in devices if device.type == "cuda"]
        self._start = 0
        self._children: dict[str, int] = {}  # bytes at the start, by process
        if self.devices:
            self.kind = CUDA
        elif _reset_peak(SELF):
            self.kind = RESIDENT
        else:
            self.kind = SINCE_START

    def start(self) -> None:
        """Reset the peak, also those of the processes that this one has started."""
        if self.kind == CUDA:
            for device in self.devices:
                torch.cuda.reset_peak_memory_stats(device)
            self._start = sum(torch.cuda.memory_allocated(device) for device in self.devices)
        elif self.kind == RESIDENT:
            _reset_peak(SELF)
            self._start = _resident_bytes("VmRSS", SELF)
            self._children = {}
            for process in _descendants():
                _reset_peak(process)
                self._children[process] = _resident_bytes("VmRSS", process)
        else:
            self._start = _peak_since_start()

    def stop(self, workers: Sequence[int] = ()) -> Usage:
        """The memory since `start`.

        Args:
            workers: ids of the processes that worked for the call. Other processes that this one
                has started do not count, such as idle workers of other methods.
        """
        if self.kind == CUDA:
            peak = sum(torch.cuda.max_memory_allocated(device) for device in self.devices)
            return Usage(self._start, peak)
        if self.kind == SINCE_START:
            return Usage(self._start, _peak_since_start())
        start = self._start
        peak = _resident_bytes("VmHWM", SELF)
        for process in map(str, workers):
            start += self._children.get(process, 0)
            peak += _resident_bytes("VmHWM", process)
        return Usage(start, peak)


def _reset_peak(process: str) -> bool:
    """Reset the highest resident memory (proc(5): clear_refs, 5); False if the system cannot."""
    try:
        (PROCESSES / process / "clear_refs").write_text("5")
    except OSError:
        return False
    return _resident_bytes("VmHWM", process) > 0


def _resident_bytes(name: str, process: str) -> int:
    """A value of a process's status, which is in kilobytes, in bytes; 0 if the value is missing or
    the process has ended."""
    try:
        lines = (PROCESSES / process / "status").read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def _descendants() -> list[str]:
    found: list[str] = []
    waiting = [SELF]
    while waiting:
        children = _children_of(waiting.pop())
        found += children
        waiting += children
    return found


def _children_of(process: str) -> list[str]:
    """The processes that the threads of a process have started; none if it has ended."""
    children: list[str] = []
    try:
        for thread in (PROCESSES / process / "task").iterdir():
            children += (thread / "children").read_text().split()
    except OSError:
        return children
    return children


def _peak_since_start() -> int:
    import resource  # does not exist on Windows

    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return highest if sys.platform == "darwin" else highest * 1024
