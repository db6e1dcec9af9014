"""Which transformers models draftlens can drive, and their parts."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from draftlens.core import tree as trees
from draftlens.core.checks import shown
from draftlens.core.errors import UnsupportedModelError
from draftlens.core.tree import ROOT, Topology

ATTENTION = ("sdpa", "eager")
"""Attention implementations that take the mask of a tree."""


KINDS_OF_TOKENS = ("token_type_ids", "mm_token_type_ids")
"""Arguments that mark the tokens of pictures in a prompt."""

_ERRORS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What models raise on inputs that they do not take."""

MEDIA = ("image", "video", "vision", "audio", "img", "boi", "eoi")
"""Prefixes of the names of token ids that a configuration has for media."""


def model_parts(model: Any, name: str) -> tuple[Any, Any, Any, str]:
    """The language model, output head and input embeddings, the whole model in place of one that it
    does not show, and why these cannot be called directly; empty if they can. Raises
    `UnsupportedModelError` for a model without `generate` or with an encoder."""
    if getattr(model.config, "is_encoder_decoder", False) or not hasattr(model, "generate"):
        raise UnsupportedModelError(f"{name} is no decoder-only model with generate()")
    layers = getattr(model.config.get_text_config(decoder=True), "layer_types", None) or ()
    if "chunked_attention" in layers:  # Llama 4
        raise UnsupportedModelError(
            f"{name} attends within chunks of a prompt, which draftlens does not support: load a "
            "model with full attention in every layer, such as Qwen3-VL"
        )
    decoder = model.get_decoder()
    head = model.get_output_embeddings()
    embed = model.get_input_embeddings()
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


def no_rollback(model_name: str, text_config: Any) -> str:
    """Why the cache cannot be rolled back, naming the kind of layer: one has a sliding window,
    linear attention or another recurrent state, or attends to pictures apart from the text. Empty
    if it can."""
    if getattr(text_config, "cross_attention_layers", None):
        return f"{model_name} attends to pictures through layers of cross-attention"
    for layer in DynamicCache(config=text_config).layers:
        if type(layer) is not DynamicLayer:
            return (
                f"{model_name} keeps a {type(layer).__name__}, which cannot be rolled back when a "
                "draft token is rejected"
            )
    return ""


def check_attention(model_name: str, attention: str) -> None:
    if attention not in ATTENTION:
        raise UnsupportedModelError(
            f"{model_name} runs {attention!r} attention, which takes no tree mask; "
            'load it with attn_implementation="sdpa" (which uses flash kernels where it can)'
        )


def media_ids(config: Any) -> frozenset[int]:
    """Ids of pixels in a prompt, and of the marks around them; meaningless in a text."""
    ids: set[int] = set()
    for name, value in vars(config).items():
        is_id = name.endswith(("_token_id", "_token_index"))
        if is_id and name.startswith(MEDIA) and isinstance(value, int):
            ids.add(value)
    return frozenset(ids)


def represents(config: Any, kind: str, input_ids: Tensor) -> Tensor:
    """Which prompt tokens represent pixels of a kind (image, video), bool ``[B, L]``."""
    names = (f"{kind}_token_id", f"{kind}_token_index")
    ids = {getattr(config, name, None) for name in names} - {None}
    return torch.isin(
        input_ids, torch.tensor(sorted(ids), dtype=torch.long, device=input_ids.device)
    )


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A boolean mask in the additive form of eager attention."""
    bias = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    return bias.masked_fill_(~mask, torch.finfo(dtype).min)


def no_direct_calls(backbone: Any) -> str:
    """Why the language model cannot be called directly; empty if it can."""
    try:
        difference = _difference(backbone)
    except torch.OutOfMemoryError:
        raise
    except _ERRORS as error:
        cause = " ".join(str(error).split()) or type(error).__name__
        return f"{backbone.name} cannot read a text of four tokens by its language model ({cause})"
    if difference is not None:
        return (
            f"{backbone.name} computes other logits when its language model is called directly "
            f"(they differ by {difference:.3g}), so its answers could not be kept the same"
        )
    try:
        _encode_marked_tokens(backbone)
    except UnsupportedModelError as error:
        return str(error)
    except _ERRORS:  # it takes no such text
        pass
    return ""


def _encode_marked_tokens(backbone: Any) -> None:
    """Encode a text with the kinds of its tokens, as a processor gives them: some models make
    masks of them (`UnsupportedModelError`)."""
    ids = torch.tensor([[1, 2, 3, 4]], device=backbone.device) % backbone.vocab_size
    names = inspect.signature(backbone.model.forward).parameters
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    inputs |= {name: torch.zeros_like(ids) for name in KINDS_OF_TOKENS if name in names}
    backbone.encode(backbone.prepare_prompt(inputs))


@torch.no_grad()
def _difference(backbone: Any) -> float | None:
    """Compare the model's own forward on four tokens with `Backbone.forward`, where the last token
    is one of a tree's two leaves; how far apart they are, None for rounding. No other check finds
    logits scaled after the head, ignored masks and positions that are made elsewhere."""
    ids = torch.tensor([[1, 2, 3, 4]], device=backbone.device) % backbone.vocab_size
    full_mask = torch.ones_like(ids)
    stock = backbone.model(input_ids=ids, attention_mask=full_mask, use_cache=False).logits[:, -1]
    rejected, root, accepted = ids[0, 1:].tolist()
    fork = Topology((ROOT, ROOT))
    relative = 1e-3 if stock.dtype == torch.float32 else 5e-2
    bound = relative * float(stock.abs().max().clamp_min(1e-6))
    prompt = backbone.text_prompt(ids[:, :2])
    cache = backbone.new_cache(prompt, room=4)
    backbone.prefill(prompt, cache)
    mask = trees.attention_mask([2], trees.ancestors(fork, backbone.device))
    tokens = torch.tensor([[root, rejected, accepted]], device=backbone.device)
    positions = prompt.positions(trees.depths(fork, backbone.device)[None])
    called = backbone.forward(tokens, positions, cache, mask)[:, 2]
    difference = float((called.to(stock.device) - stock).abs().max())
    return None if difference <= bound else difference
