"""From the structure of a model to compiled passes in files, without its weights."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram, export

from draftlens.compile.products import use_onednn
from draftlens.compile.shapes import ANY, PassShape
from draftlens.compile.skeleton import Skeleton

ROWS = 3
"""Rows in a traced pass, for any number of them."""

WIDTH = 5
"""Tokens of each row in a traced pass; unlike `ROWS`, so that the two are not confused."""

REACH = 96
"""Cached tokens in a traced pass."""

CAPACITY = 160
"""Reserved tokens in a traced pass."""

OPTIONS: dict[str, Any] = {
    # The weights are those of the process that runs the code.
    "aot_inductor.package_constants_in_so": False,
    "compile_threads": 1,
}


def compile_to_file(skeleton: Skeleton, shape: PassShape, path: Path) -> None:
    """Trace and compile a kind of pass into a ``.pt2`` file, which appears when it is complete.
    Raises any error of torch or the compiler on code that cannot be traced or compiled."""
    partial = path.with_suffix(f".{os.getpid()}.pt2")
    try:
        with torch.no_grad():
            program = traced(skeleton, shape)
            torch._inductor.aoti_compile_and_package(
                program, package_path=str(partial), inductor_configs=dict(OPTIONS)
            )
        partial.replace(path)  # atomic: other processes never read an unfinished file
    finally:
        partial.unlink(missing_ok=True)


def traced(skeleton: Skeleton, shape: PassShape) -> ExportedProgram:
    """The operations of a pass. Raises if the code depends on values or on sizes that vary."""
    program = export(
        skeleton.build(),
        _inputs(skeleton, shape),
        dynamic_shapes=_dynamic(skeleton, shape),
        strict=False,
    )
    if not (shape.is_single or shape.is_few):
        use_onednn(program)
    return program


def _inputs(skeleton: Skeleton, shape: PassShape) -> tuple[Any, ...]:
    rows = ROWS if shape.rows == ANY else shape.rows
    width = WIDTH if shape.width == ANY else shape.width
    device = skeleton.device
    numbers = torch.zeros(rows, width, dtype=torch.long, device=device)
    keys: list[Tensor] = []
    values: list[Tensor] = []
    for layer in skeleton.layers:
        size = (rows, layer.heads, CAPACITY)
        keys.append(torch.zeros(*size, layer.key_width, dtype=layer.dtype, device=device))
        values.append(torch.zeros(*size, layer.value_width, dtype=layer.dtype, device=device))
    return (
        numbers,
        torch.zeros(*shape.axes, rows, width, dtype=torch.long, device=device),
        numbers.clone(),
        torch.ones(rows, 1, width, REACH, dtype=torch.bool, device=device),
        keys,
        values,
    )


def _dynamic(skeleton: Skeleton, shape: PassShape) -> tuple[Any, ...]:
    rows = {0: Dim("rows", min=2)} if shape.rows == ANY else {}
    width = {1: Dim("width", min=2)} if shape.width == ANY else {}
    capacity = {2: Dim("capacity", min=2)}
    buffers = [{**rows, **capacity} for _ in skeleton.layers]
    first = len(shape.axes)
    positions = {first + index: dim for index, dim in {**rows, **width}.items()}
    visible = {index if index == 0 else 2: dim for index, dim in {**rows, **width}.items()}
    visible[3] = Dim("reach", min=2)
    return ({**rows, **width}, positions, {**rows, **width}, visible, buffers, buffers)
