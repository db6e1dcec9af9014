"""Construction of a deep model from a shallow one that computes the same function.

Every trained layer is followed by copies of itself whose two output projections are zero. They add
nothing to the residual stream until further training changes them. A model
learns to see much faster while its language model is shallow, but the depth of the language model
determines the decode time of a small model on a CPU.
"""

import copy
from typing import Any

import torch


@torch.no_grad()
def deepen(shallow: Any, deep: Any) -> Any:
    """Initialise a deep model from a shallow one.

    Args:
        shallow: the trained model.
        deep: a model of the same widths with a multiple of the layers; it is modified in place.

    Returns:
        ``deep``.

    Raises:
        ValueError: the number of layers is not a multiple.
    """
    shallow_layers = shallow.model.language_model.layers
    deep_layers = deep.model.language_model.layers
    copies, rest = divmod(len(deep_layers), len(shallow_layers))
    if rest:
        raise ValueError(
            f"cannot spread {len(shallow_layers)} layers evenly over {len(deep_layers)}"
        )
    deep.load_state_dict(_state_outside_layers(shallow), strict=False)
    for index, layer in enumerate(deep_layers):
        source = shallow_layers[index // copies]
        layer.load_state_dict(copy.deepcopy(source.state_dict()))
        if index % copies:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    return deep


def _state_outside_layers(model: Any) -> dict[str, torch.Tensor]:
    """The parameters that are not in the layers of the language model."""
    state = model.state_dict()
    return {name: value for name, value in state.items() if ".language_model.layers." not in name}
