"""Products of a few rows with large matrices, by the kernel that reads the matrix least often.

`torch.nn.functional.linear` calls MKL for float32 on x86 processors, which reads a matrix once for
every three rows, up to fifteen of them. oneDNN reads it once. It is slower with two or three rows,
and its calls cost tens of microseconds more, which small matrices show.
"""

from __future__ import annotations

import math

import torch
from torch.export import ExportedProgram

LARGE = 4_000_000
"""Least number of elements of a matrix whose products oneDNN computes sooner."""

FEW = 3
"""Most rows whose products MKL computes sooner."""


def is_large(size: torch.Size | tuple[int, ...], dtype: torch.dtype, device: str) -> bool:
    """Whether oneDNN computes products of a matrix with more than `FEW` rows.

    Args:
        size, dtype, device: of the matrix.
    """
    return (
        torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and torch.device(device).type == "cpu"
        and dtype == torch.float32
        and len(size) == 2
        and math.prod(size) >= LARGE
    )


def use_onednn(program: ExportedProgram) -> int:
    """Let oneDNN compute the products of a traced pass with large matrices. The matrices are read
    where they are: no copy in a layout of oneDNN's own is made.

    Args:
        program: is changed.

    Returns:
        The number of products.
    """
    count = 0
    for node in program.graph.nodes:
        if node.target != torch.ops.aten.linear.default:
            continue
        states, weight, *bias = node.args
        matrix = weight.meta["val"]
        if not is_large(matrix.shape, matrix.dtype, str(matrix.device)):
            continue
        node.target = torch.ops.mkldnn._linear_pointwise.default
        node.args = (states, weight, bias[0] if bias else None, "none", [], "")
        count += 1
    program.graph_module.recompile()
    return count
