"""The highest memory while something runs.

On CUDA it is what torch has allocated, all devices together. Else it is the resident memory of the
whole process: Linux keeps the highest value itself and can be told to begin anew, so that nothing
has to watch. Where it cannot, the highest value since the process began is all that there is.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch

CUDA = "allocated by torch on CUDA"
RESIDENT = "resident memory of the process"
EVER = "highest resident memory since the process began"
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Peak:
    """Highest memory between `start` and `stop`.

    Args:
        devices: that models are on.
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self.devices = [device for device in devices if device.type == "cuda"]
        self.kind = CUDA if self.devices else RESIDENT if _begin_anew() else EVER

    def start(self) -> int:
        """Begin anew; bytes in use now."""
        if self.devices:
            for device in self.devices:
                torch.cuda.reset_peak_memory_stats(device)
            return sum(torch.cuda.memory_allocated(device) for device in self.devices)
        if self.kind == RESIDENT:
            _begin_anew()
            return _kilobytes("VmRSS") * 1024
        return _ever()

    def stop(self) -> int:
        """Most bytes in use since `start`."""
        if self.devices:
            return sum(torch.cuda.max_memory_allocated(device) for device in self.devices)
        return _kilobytes("VmHWM") * 1024 if self.kind == RESIDENT else _ever()


def _begin_anew() -> bool:
    """Have Linux forget the highest resident memory so far (proc(5): clear_refs, 5); False where it
    cannot."""
    try:
        RESET.write_text("5")
        return _kilobytes("VmHWM") > 0
    except OSError:
        return False


def _kilobytes(name: str) -> int:
    for line in STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    return 0


def _ever() -> int:
    import resource  # not on every system

    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return highest if sys.platform == "darwin" else highest * 1024
