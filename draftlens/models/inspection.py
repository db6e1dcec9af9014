"""What a transformers model is made of, and whether draftlens can drive it: looked at once, when a
`Backbone` is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from transformers import DynamicCache
from transformers.cache_utils import DynamicIndexedLayer, DynamicLayer, LinearAttentionLayer

from draftlens.core.errors import UnsupportedModelError
from draftlens.core.options import shown
from draftlens.models.model_state import Slot, lock_of

if TYPE_CHECKING:
    from draftlens.models.layer_kinds import LayerKinds
    from draftlens.models.outer_model import LogitScale

_DIRECT_CALLS = Slot[str]("why the language model cannot be called directly")

_AROUND = Slot["tuple[LogitScale | None, dict[int, int]]"]("scale of logits, replaced ids")

GENERATES = "prepare_inputs_for_generation"
"""What models have that generate token by token."""

ATTENTION = ("sdpa", "eager")
"""Attention implementations that take the mask of a tree."""

ERRORS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What models raise on inputs that they do not take."""


def model_parts(model: Any, name: str) -> tuple[Any, Any, Any, str]:
    """The language model, output head and input embeddings, the whole model in place of one that it
    does not show, and why these cannot be called directly; empty if they can. Raises
    `UnsupportedModelError` for a model without `generate` or with an encoder."""
    if getattr(model.config, "is_encoder_decoder", False) or not hasattr(model, GENERATES):
        raise UnsupportedModelError(f"{name} is no decoder-only model with generate()")
    layers = getattr(model.config.get_text_config(decoder=True), "layer_types", None) or ()
    if "chunked_attention" in layers:  # Llama 4
        raise UnsupportedModelError(
            f"{name} attends within chunks of a prompt, which draftlens does not support (and "
            "stock generate of transformers 5.24 reads no text without pictures by Llama 4): load "
            "a model with full attention in every layer, such as Qwen3-VL"
        )
    try:
        decoder = model.get_decoder()
        head, embed = model.get_output_embeddings(), model.get_input_embeddings()
    except NotImplementedError as error:  # Qwen-Omni with its talker
        cause = f"{name} shows no embeddings: give the model in it that writes, such as `thinker`"
        raise UnsupportedModelError(cause) from error
    reason = ""
    if decoder is None or decoder is model or head is None or embed is None:
        reason = f"{name} does not show its language model, embeddings and output head"
    elif getattr(decoder, "get_output_embeddings", _nothing)() is not None:
        reason = (
            f"{name} shows no language model without an output head, so its hidden states "
            "cannot be read"
        )
    return *(model if part is None else part for part in (decoder, head, embed)), reason


def _nothing() -> None:
    """The output head of a decoder that is not a transformers model: None."""


def unwrapped_model(model: Any) -> Any:
    """The model inside DataParallel, DistributedDataParallel and `torch.compile` wrappers, which
    have the same weights and forward `generate` to it. Raises `UnsupportedModelError`."""
    while isinstance(model, nn.Module):
        if isinstance(model, (nn.DataParallel, DistributedDataParallel)):
            model = model.module
        elif hasattr(model, "_orig_mod"):  # by `torch.compile`; importing its class is slow
            model = model._orig_mod
        else:
            break
    if not isinstance(model, nn.Module):
        raise UnsupportedModelError(
            f"a transformers model is needed, not {shown(model)}; draftlens.load takes names"
        )
    if not hasattr(model, "config"):
        raise UnsupportedModelError(
            f"{type(model).__name__} is no transformers model: give the model that it wraps"
        )
    return model


def has_groups(text_config: Any) -> bool:
    """Whether a language model may have fewer heads of keys than of queries."""
    heads = getattr(text_config, "num_attention_heads", None)
    return getattr(text_config, "num_key_value_heads", None) not in (None, heads)


def execution_device(module: Any) -> torch.device:
    """The device of inputs; accelerate knows that of a spread or offloaded module."""
    device = getattr(getattr(module, "_hf_hook", None), "execution_device", None)
    return torch.device(device) if device is not None else next(module.parameters()).device


def no_rollback(model_name: str, text_config: Any, indexers: Any = None) -> str:
    """Why the cache cannot be rolled back, naming the kind of layer, or why there is no mask for a
    layer; empty if it can."""
    if getattr(text_config, "cross_attention_layers", None):
        return f"{model_name} attends to pictures through layers of cross-attention"
    if indexers is not None and indexers.refusal:
        return str(indexers.refusal)
    layers = DynamicCache(config=text_config).layers
    if all(type(layer) in PLAIN_LAYERS for layer in layers):
        return ""
    from draftlens.models.layer_kinds import unsupported

    return unsupported(model_name, text_config, layers)


PLAIN_LAYERS = (DynamicLayer, LinearAttentionLayer)
"""Layers that attend fully to keys of their own, and those that keep states in place of keys."""


def kinds_of(text_config: Any) -> LayerKinds | None:
    """The kinds of a language model's layers that `no_rollback` has nothing against; None if all
    are `PLAIN_LAYERS`, or only select tokens."""
    layers = DynamicCache(config=text_config).layers
    if all(type(layer) in PLAIN_LAYERS for layer in layers):
        return None
    from draftlens.models.layer_kinds import LayerKinds

    kinds = LayerKinds.of(text_config)
    return kinds if kinds.window or not any(map(is_indexed, layers)) else None


def indexers_of(backbone: Any) -> Any:
    """How a model's indexers are driven (`models.indexed_cache.Indexers`); None without any."""
    if not any(map(is_indexed, DynamicCache(config=backbone.text_config).layers)):
        return None
    from draftlens.models.indexed_cache import Indexers

    return Indexers(backbone.name, backbone.text_config)


def is_indexed(layer: Any) -> bool:
    """Whether a layer of stock's cache keeps the keys of an indexer, too: it selects the tokens
    that a token attends to."""
    return isinstance(layer, DynamicIndexedLayer) or hasattr(layer, "update_index")


def state_layers(backbone: Any, plain_only: str) -> tuple[Any, str]:
    """The layers that keep recurrent or convolution states (`models.recurrent`), and why draft
    tokens must form chains then; None and an empty text without such layers."""
    kinds = () if plain_only else DynamicCache(config=backbone.text_config).layers
    if not any(isinstance(kind, LinearAttentionLayer) for kind in kinds):
        return None, "" if backbone.indexers is None else backbone.indexers.chains_only
    from draftlens.models.recurrent import StateLayers

    reason = f"{backbone.name} keeps recurrent states, which follow one chain of tokens"
    return StateLayers(backbone.decoder, kinds, lock_of(backbone.model)), reason


def check_attention(model_name: str, attention: str) -> None:
    if attention not in ATTENTION:
        raise UnsupportedModelError(
            f"{model_name} runs {attention!r} attention, which takes no tree mask; "
            'load it with attn_implementation="sdpa" (which uses flash kernels where it can)'
        )


def around(backbone: Any) -> tuple[LogitScale | None, Any]:
    """What a model does to its logits, None for nothing, and its embeddings of answers."""
    scale, others = _AROUND.get_or_make(backbone.model, lambda: _looked_around(backbone))
    if not others:
        return scale, backbone.embed
    from draftlens.models.outer_model import ReplacingEmbedding

    return scale, ReplacingEmbedding(backbone.embed, others)


def _looked_around(backbone: Any) -> tuple[LogitScale | None, dict[int, int]]:
    from draftlens.models.outer_model import logit_scale_of, replaced_ids

    return logit_scale_of(backbone), replaced_ids(backbone)


def attends_both_ways(decoder: nn.Module) -> bool:
    """Whether the tokens of a language model attend to all others where it gets no mask. Attention
    with an index of a layer is that of a language model, not of an encoder inside of it."""
    return any(
        getattr(module, "is_causal", None) is False and hasattr(module, "layer_idx")
        for module in decoder.modules()
    )


def no_direct_calls(backbone: Any) -> str:
    """Why the language model cannot be called directly, found out once; empty if it can."""

    def reason() -> str:
        from draftlens.models.direct_calls import reason_against

        return reason_against(backbone)

    return _DIRECT_CALLS.get_or_make(backbone.model, reason)


def is_wide(head: Any, dtype: torch.dtype) -> bool:
    """Whether an output head keeps 32 bits in a model of 16, as that of HYV4 does."""
    of_head = getattr(getattr(head, "weight", None), "dtype", None)
    return of_head is torch.float32 and dtype is not torch.float32
