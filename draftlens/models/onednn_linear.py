"""Products of a few rows with large matrices, by the kernel that reads the matrix least often.

`torch.nn.functional.linear` calls MKL for float32 on x86 processors, which reads a matrix once for
every three rows, up to fifteen of them. oneDNN reads it once. It is slower with two or three rows,
and its calls cost tens of microseconds more, which small matrices show. The matrix is read where it
is: no copy in a layout of oneDNN's own is made.
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
"""Least number of elements of a matrix whose products oneDNN computes sooner."""

FEW = 3
"""Most rows whose products MKL computes sooner."""

MANY = 64
"""Most rows of which oneDNN is asked for products."""


def is_large(size: torch.Size | tuple[int, ...], dtype: torch.dtype, device: torch.device) -> bool:
    """Whether oneDNN computes products of a few rows with a matrix sooner.

    Args:
        size, dtype, device: of the matrix.
    """
    return (
        device.type == "cpu"
        and dtype == torch.float32
        and len(size) == 2
        and math.prod(size) >= LARGE
        and is_available()
    )


def is_available() -> bool:
    """Whether torch has both libraries, may use oneDNN, and is not asked for a lower precision than
    float32. `torch.backends.mkldnn.enabled = False` forbids it."""
    return bool(
        torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and torch.backends.mkldnn.enabled
        and torch.get_float32_matmul_precision() == "highest"
    )


def has_large(modules: Sequence[nn.Module]) -> bool:
    """Whether any weight of these modules is a large matrix."""
    return any(
        is_large(weight.shape, weight.dtype, weight.device)
        for module in modules
        for weight in module.parameters()
    )


def few_rows(tokens: Tensor, applies: bool) -> AbstractContextManager[Any]:
    """A context for a forward of a model, in which oneDNN computes products with large matrices if
    there are few rows, but more than `FEW`.

    Args:
        tokens: what is forwarded, ``[B, T]``.
        applies: whether the model has large matrices.
    """
    if applies and FEW < tokens.numel() <= MANY and not torch.is_autocast_enabled("cpu"):
        return _ByOneDNN()
    return nullcontext()


class _ByOneDNN(TorchFunctionMode):
    """Calls oneDNN in place of `torch.nn.functional.linear` where the matrix is large."""

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
    """What `torch.nn.functional.linear` computes, by oneDNN."""
    output: Tensor = torch.ops.mkldnn._linear_pointwise(states, weight, bias, "none", [], "")
    return output
