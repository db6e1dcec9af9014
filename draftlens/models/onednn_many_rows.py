"""Products of many rows by the library that computes them faster on this processor: those of
prompts, of pictures and of wide batches.

`torch.nn.functional.linear` calls MKL for float32 on x86. Its code for processors of other makers
does not use all that they have: with AVX-512 on AMD's it takes twice the time of oneDNN, which
torch contains too. Elsewhere both take the same.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from draftlens.models.onednn_linear import FasterKernel, LinearBy, is_available, product

WORK = 20_000_000
"""Least number of multiplications of a product that is computed here: 0.2 ms of one core. A call of
oneDNN costs tens of microseconds."""

PASS_WORK = 3_000_000_000
"""Least number of multiplications of a pass in which products are watched for: 30 ms of one core.
Watching costs microseconds for every function of torch that the pass calls."""


class ManyRows(FasterKernel):
    """Products of many rows of one model, by MKL or by oneDNN. The choice is one for all of them,
    since either library's time for a multiplication hardly depends on the size."""

    def __call__(self, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        by_mkl = partial(linear, states, weight, bias)
        by_onednn = partial(product, states, weight, bias)
        return self.compute(torch.get_num_threads(), _work(states, weight), by_mkl, by_onednn)


def many_rows(work: int, products: Callable[[], ManyRows]) -> AbstractContextManager[Any]:
    """A context for a pass of so many multiplications, in which those with many rows are computed
    by the faster library. Weights must be on the CPU."""
    if work >= PASS_WORK and is_available() and not torch.is_autocast_enabled("cpu"):
        return LinearBy(products(), _fits)
    return nullcontext()


def _fits(states: Tensor, weight: Tensor) -> bool:
    return (
        type(weight) in (Tensor, nn.Parameter)
        and weight.dtype == torch.float32
        and states.dtype == torch.float32
        and weight.device.type == "cpu"
        and weight.dim() == 2
        and weight.is_contiguous()
        and not torch.is_grad_enabled()
        and _work(states, weight) >= WORK
    )


def _work(states: Tensor, weight: Tensor) -> int:
    """Multiplications of a product."""
    return states.numel() * len(weight)
