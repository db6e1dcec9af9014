"""Products with large matrices in compiled passes (`models.onednn_linear`)."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram

from draftlens.models.onednn_linear import is_large


def use_onednn(program: ExportedProgram) -> int:
    """Let oneDNN compute large products of a traced pass, in place; returns their number."""
    count = 0
    for node in program.graph.nodes:
        if node.target != torch.ops.aten.linear.default:
            continue
        states, weight, *bias = node.args
        matrix = weight.meta["val"]
        if not is_large(matrix.shape, matrix.dtype, matrix.device):
            continue
        node.target = torch.ops.mkldnn._linear_pointwise.default
        node.args = (states, weight, bias[0] if bias else None, "none", [], "")
        count += 1
    program.graph_module.recompile()
    return count
