"""A deep model from a shallow one that computes the same function: training then goes on from
there.

Every trained layer is followed by copies of itself whose two output projections are zero, so that
they add nothing to the residual stream until training gives them something to add. Learning to see
is much cheaper in the shallow model, and depth is what sets a small model's decode time on a CPU.
"""

import copy
from typing import Any

import torch


@torch.no_grad()
def deepen(shallow: Any, deep: Any) -> Any:
    """Fills ``deep`` (same widths, a multiple of the layers) from ``shallow`` and returns it."""
    parts = shallow.model.language_model.layers
    layers = deep.model.language_model.layers
    if len(layers) % len(parts):
        raise ValueError(f"cannot spread {len(parts)} layers evenly over {len(layers)}")
    every = len(layers) // len(parts)
    rest = {
        name: v for name, v in shallow.state_dict().items() if ".language_model.layers." not in name
    }
    deep.load_state_dict(rest, strict=False)
    for i, layer in enumerate(layers):
        layer.load_state_dict(copy.deepcopy(parts[i // every].state_dict()))
        if i % every:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    return deep
