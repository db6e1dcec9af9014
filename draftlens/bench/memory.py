"""Peak memory of a call.

On CUDA the peak is that of torch's allocations on all devices together. Elsewhere it is the
resident memory of the whole process. Linux records its highest value and can reset the record, so
no thread has to poll it. On other systems only the highest value since the process began is
available.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch

CUDA = "allocated by torch on CUDA"
RESIDENT = "resident memory of the process"
SINCE_START = "highest resident memory since the process began"

STATUS = Path("/proc/self/status")
RESET = Path("/proc/self/clear_refs")


class Peak:
    """Highest memory between `start` and `stop`.

    Args:
        devices: the devices of the models.

    Attributes:
        kind: what is measured: CUDA, RESIDENT or SINCE_START.
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self.devices = [device for device in devices if device.type == "cuda"]
        if self.devices:
            self.kind = CUDA
        elif _reset_peak():
            self.kind = RESIDENT
        else:
            self.kind = SINCE_START

    def start(self) -> int:
        """Reset the peak.

        Returns:
            Bytes in use now.
        """
        if self.kind == CUDA:
            for device in self.devices:
                torch.cuda.reset_peak_memory_stats(device)
            return sum(torch.cuda.memory_allocated(device) for device in self.devices)
        if self.kind == RESIDENT:
            _reset_peak()
            return _resident_bytes("VmRSS")
        return _peak_since_start()

    def stop(self) -> int:
        """The largest number of bytes in use since `start`."""
        if self.kind == CUDA:
            return sum(torch.cuda.max_memory_allocated(device) for device in self.devices)
        if self.kind == RESIDENT:
            return _resident_bytes("VmHWM")
        return _peak_since_start()


def _reset_peak() -> bool:
    """Reset the highest resident memory (proc(5): clear_refs, 5); False if the system cannot."""
    try:
        RESET.write_text("5")
        return _resident_bytes("VmHWM") > 0
    except OSError:
        return False


def _resident_bytes(name: str) -> int:
    """A value of /proc/self/status, which is in kilobytes, in bytes; 0 if it is missing."""
    for line in STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def _peak_since_start() -> int:
    import resource  # does not exist on Windows

    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return highest if sys.platform == "darwin" else highest * 1024
