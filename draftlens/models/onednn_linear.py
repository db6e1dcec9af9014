"""Products of a few rows with large matrices, by the kernel that reads the matrix least often.

`torch.nn.functional.linear` calls MKL for float32 on x86, which reads a matrix once for every three
rows, up to fifteen of them; oneDNN reads it once, in place. oneDNN is slower with two or three
rows, and its calls cost tens of microseconds more, which matters for small matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

LARGE = 4_000_000
"""Least number of elements of a matrix for which oneDNN is faster."""

FEW = 3
"""Most rows for which MKL is faster."""

MANY = 64
"""Most rows that oneDNN computes here."""


def is_large(size: torch.Size | tuple[int, ...], dtype: torch.dtype, device: torch.device) -> bool:
    """Whether oneDNN computes products of a few rows with such a matrix faster."""
    return (
        device.type == "cpu"
        and dtype == torch.float32
        and len(size) == 2
        and math.prod(size) >= LARGE
        and is_available()
    )


def is_available() -> bool:
    """Whether torch has both libraries, may use oneDNN, and keeps float32 precision."""
    return bool(
        torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and torch.backends.mkldnn.enabled
        and torch.get_float32_matmul_precision() == "highest"
    )


def has_large(modules: Sequence[nn.Module]) -> bool:
    return any(
        is_large(weight.shape, weight.dtype, weight.device)
        for module in modules
        for weight in module.parameters()
    )


def few_rows(tokens: Tensor, applies: bool) -> AbstractContextManager[Any]:
    """A context for a forward over `tokens` ``[B, T]``, in which oneDNN computes products with
    large matrices if there are more than `FEW` and at most `MANY` rows."""
    if applies and FEW < tokens.numel() <= MANY and not torch.is_autocast_enabled("cpu"):
        return _ByOneDNN()
    return nullcontext()


class _ByOneDNN(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is linear and not kwargs and type(args[1]) in (Tensor, nn.Parameter):
            states, weight, *bias = args
            if is_large(weight.shape, weight.dtype, weight.device):
                return product(states, weight, bias[0] if bias else None)
        return func(*args, **(kwargs or {}))


def product(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`torch.nn.functional.linear` by oneDNN."""
    output: Tensor = torch.ops.mkldnn._linear_pointwise(states, weight, bias, "none", [], "")
    return output
