"""Two CUDA devices that this machine need not have: tensors say that they are on them, and the CPU
computes their values.

Within `simulated` an operation that mixes devices is refused as CUDA refuses it, a read of what
another stream has not finished is an error, and launches, waits of the host and bytes are counted.
"""

from tests.device.counts import Counts, Round, rounds_of
from tests.device.machine import DeviceError, DeviceTensor, StreamError
from tests.device.runtime import Simulation, copied, moved, on_device, simulated

__all__ = [
    "Counts",
    "DeviceError",
    "DeviceTensor",
    "Round",
    "Simulation",
    "StreamError",
    "copied",
    "moved",
    "on_device",
    "rounds_of",
    "simulated",
]
