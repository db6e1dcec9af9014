"""The number of threads for a model on the CPU."""

from __future__ import annotations

import os
from typing import Any

import torch

MAX_SINGLE_THREADED = 50_000_000
"""Number of parameters below which one thread is faster than several.

In smaller models, threads wait for each other longer than they compute.
"""


def settle_threads(model: Any) -> None:
    """Set torch to one thread if a model is small and on the CPU.

    Does nothing if the user has set OMP_NUM_THREADS. On a busy machine several threads are five or
    more times slower, because each thread without a core delays all others.
    """
    if "OMP_NUM_THREADS" in os.environ or model.device.type != "cpu":
        return
    if sum(parameter.numel() for parameter in model.parameters()) < MAX_SINGLE_THREADED:
        torch.set_num_threads(1)
