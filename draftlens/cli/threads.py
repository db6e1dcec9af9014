"""How many threads a model on the CPU should have."""

from __future__ import annotations

import os
from typing import Any

import torch

SMALL = 50_000_000
"""Parameters below which one thread is faster than several: threads wait for each other longer than
they compute."""


def settle_threads(model: Any) -> None:
    """Give a small model on the CPU one thread, unless the user has set OMP_NUM_THREADS.

    On a busy machine the waiting costs a factor of five and more, since a thread that has no core
    holds up all others.
    """
    if "OMP_NUM_THREADS" in os.environ or model.device.type != "cpu":
        return
    if sum(parameter.numel() for parameter in model.parameters()) < SMALL:
        torch.set_num_threads(1)
