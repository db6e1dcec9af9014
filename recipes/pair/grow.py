"""Construction of a deep model from a shallow one that computes the same function.

Every trained layer is followed by copies of itself whose two output projections are zero. They add
nothing to the residual stream until further training changes them; or all copies share its work. A
model learns to see much faster while its language model is shallow, but the depth of the language
model determines the decode time of a small model on a CPU.
"""

import copy
from typing import Any

import torch


@torch.no_grad()
def shallow_copy(deep: Any, shallow: Any) -> Any:
    """Initialise a shallow model from a deep one that `deepen` made: every first copy is kept.

    Args:
        deep: the deep model.
        shallow: a model of the same widths, of whose layers the deep one has a multiple; it is
            modified in place.

    Returns:
        ``shallow``.

    Raises:
        ValueError: the number of layers is not a multiple.
    """
    copies = _copies(shallow, deep)
    shallow.load_state_dict(_state_outside_layers(deep), strict=False)
    for index, layer in enumerate(shallow.model.language_model.layers):
        source = deep.model.language_model.layers[index * copies]
        layer.load_state_dict(copy.deepcopy(source.state_dict()))
    return shallow


@torch.no_grad()
def deepen(shallow: Any, deep: Any, spread: bool = False) -> Any:
    """Initialise a deep model from a shallow one.

    Args:
        shallow: the trained model.
        deep: a model of the same widths with more layers, a multiple unless the work is spread; it
            is modified in place.
        spread: whether the copies of a layer share its work, each adding a part of what the layer
            added. The function is then about the same, and further training must restore it.
            Otherwise the first copy adds everything, and the function is the same.

    Returns:
        ``deep``.

    Raises:
        ValueError: the number of layers is not a multiple.
    """
    shallow_layers = shallow.model.language_model.layers
    deep_layers = deep.model.language_model.layers
    if not spread:
        _copies(shallow, deep)
    sources = [index * len(shallow_layers) // len(deep_layers) for index in range(len(deep_layers))]
    deep.load_state_dict(_state_outside_layers(shallow), strict=False)
    for index, layer in enumerate(deep_layers):
        source = sources[index]
        layer.load_state_dict(copy.deepcopy(shallow_layers[source].state_dict()))
        is_first = source not in sources[:index]
        share = 1 / sources.count(source) if spread else float(is_first)
        layer.self_attn.o_proj.weight.mul_(share)
        layer.mlp.down_proj.weight.mul_(share)
    return deep


def _copies(shallow: Any, deep: Any) -> int:
    """The number of layers of the deep model for each layer of the shallow one."""
    num_shallow = len(shallow.model.language_model.layers)
    num_deep = len(deep.model.language_model.layers)
    copies, rest = divmod(num_deep, num_shallow)
    if rest:
        raise ValueError(f"cannot spread {num_shallow} layers evenly over {num_deep}")
    return copies


def _state_outside_layers(model: Any) -> dict[str, torch.Tensor]:
    """The parameters that are not in the layers of the language model."""
    state = model.state_dict()
    return {name: value for name, value in state.items() if ".language_model.layers." not in name}
