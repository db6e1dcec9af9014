"""Which transformers models draftlens can drive, their parts, caches and rotary positions."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from transformers import DynamicCache, GenerationMixin
from transformers.cache_utils import DynamicIndexedLayer, DynamicLayer, LinearAttentionLayer

from draftlens.core import tree as trees
from draftlens.core.errors import InputError, UnsupportedModelError
from draftlens.core.options import shown
from draftlens.core.tree import ROOT, Topology, chain
from draftlens.models.model_state import lock_of

if TYPE_CHECKING:
    from draftlens.models.layer_kinds import LayerKinds
    from draftlens.models.outer_model import LogitScale

CACHE_ARGUMENTS = ("cache", "past_key_values")
"""In any version of transformers."""

GENERATES = "prepare_inputs_for_generation"
"""What models have that generate token by token."""

_PREPARING = inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters

CACHE_ARGUMENT = "cache" if "cache" in _PREPARING else "past_key_values"
"""In the installed version of transformers."""

PAST_REFUSAL = (
    f"{CACHE_ARGUMENT} holds an earlier turn, which the draft cannot read: "
    f"give the whole chat, pictures included, without {CACHE_ARGUMENT}"
)


def with_cache(cache: Any) -> dict[str, Any]:
    return {CACHE_ARGUMENT: cache}


def cache_in(arguments: Mapping[str, Any]) -> Any:
    caches = (arguments.get(name) for name in CACHE_ARGUMENTS)
    return next((cache for cache in caches if cache is not None), None)


def holds_tokens(cache: Any) -> bool:
    if all(getattr(cache, "is_linear", (False,))):  # has states and no length
        return any(cache.has_previous_state(layer) for layer in range(len(cache.layers)))
    return bool(cache.get_seq_length() > 0)


def without_cache(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in arguments.items() if key not in CACHE_ARGUMENTS}


@dataclass(frozen=True)
class _Limit:
    """A sequence length beyond which the frequencies of a kind of RoPE differ."""

    kind: str
    num_tokens: int


def check_reach(model_name: str, text_config: Any, prompt: int, longest: int) -> None:
    """Raise `InputError` where draft tokens could change the frequencies of the tokens before them.

    transformers recomputes `dynamic` frequencies for the last position of each forward beyond a
    limit. `longrope` has one set of frequencies for forwards within its limit and one for longer
    ones. A forward over draft tokens reaches further than one over a single token, so near the
    limit it would compute other logits for the same token. `prompt` and `longest` are the tokens of
    the longest prompt, without and with the longest possible answer.
    """
    for limit in _limits(text_config):
        # All forwards of a prompt beyond the limit use the longer set of longrope.
        always_beyond = limit.kind == "longrope" and prompt > limit.num_tokens
        if longest > limit.num_tokens and not always_beyond:
            raise InputError(
                f"prompt and answer may reach {longest} tokens, and beyond {limit.num_tokens} a "
                f"draft token would change the {limit.kind} rotary positions of {model_name}: "
                'request a shorter answer or use method "plain"'
            )


@dataclass(frozen=True)
class Frequencies:
    """The rotary frequencies in the passes over the rows of a call.

    Args:
        beyond: the limits of the model that all passes exceed; None if the frequencies change
            between the passes.
    """

    beyond: frozenset[int] | None = frozenset()

    @property
    def are_original(self) -> bool:
        """Whether all passes have the frequencies of short sequences."""
        return self.beyond == frozenset()

    def allow_passes_with(self, other: Frequencies) -> bool:
        """Whether rows of two calls have the same frequencies in shared passes as in their own."""
        return self.beyond is not None and self.beyond == other.beyond


def frequencies_of(
    model_name: str, text_config: Any, prompts: Sequence[int], room: int, rereads: bool = False
) -> Frequencies:
    """The frequencies of a call, which all rows of a pass share: those of the longest row.

    Args:
        prompts: positions of each row's prompt.
        room: the most tokens of an answer.
        rereads: whether stock `generate` of the model reads the prompt again when an answer exceeds
            the limit of `longrope`, as Phi models do.

    Raises:
        InputError: the frequencies of a row would depend on how long the other rows run, or stock
            `generate` might read the prompt again.
    """
    beyond: set[int] = set()
    change = False
    for limit in _limits(text_config):
        if limit.kind == "longrope" and min(prompts) > limit.num_tokens:
            beyond.add(limit.num_tokens)
            continue
        if max(prompts) + room <= limit.num_tokens:
            continue
        if min(prompts) != max(prompts):
            raise InputError(
                f"the prompts of the batch have {min(prompts)} to {max(prompts)} tokens, and "
                f"beyond {limit.num_tokens} the {limit.kind} rotary positions of a row of "
                f"{model_name} depend on the longest row: ask for each row in a call of its own"
            )
        if rereads and limit.kind == "longrope":
            raise InputError(
                f"prompt and answer may reach {max(prompts) + room} tokens, and beyond "
                f"{limit.num_tokens} {model_name} reads the prompt again with other rotary "
                "positions: request a shorter answer"
            )
        change = True
    return Frequencies(None if change else frozenset(beyond))


def reads_with_original(text_config: Any, prompt: int) -> bool:
    """Whether passes over a prompt of so many positions, or over a part of it, have the frequencies
    of short sequences."""
    return all(prompt <= limit.num_tokens for limit in _limits(text_config))


def dynamic_modules(decoder: nn.Module) -> list[nn.Module]:
    """The modules whose `dynamic` frequencies stay as the longest pass so far has left them."""
    return [module for module in decoder.modules() if _dynamic_prefixes(module)]


@contextmanager
def restarted(modules: Sequence[Any], passing: AbstractContextManager[None]) -> Iterator[None]:
    """A pass that has the `dynamic` frequencies of a new model, and leaves them to the next one."""
    with passing:
        _restart(modules)
        try:
            yield
        finally:
            _restart(modules)


def _restart(modules: Sequence[Any]) -> None:
    """What transformers does before a pass that is shorter than the limit, and not before a longer
    one."""
    for module in modules:
        for prefix in _dynamic_prefixes(module):
            length = f"{prefix}max_seq_len_cached"
            if getattr(module, length, 0) > module.original_max_seq_len:
                frequencies = f"{prefix}inv_freq"
                original = getattr(module, f"{prefix}original_inv_freq")
                device = getattr(module, frequencies).device
                module.register_buffer(frequencies, original.to(device), persistent=False)
                setattr(module, length, module.original_max_seq_len)


def _dynamic_prefixes(module: Any) -> list[str]:
    """How the attributes of each kind of layer with `dynamic` frequencies begin in a module."""
    kinds = getattr(module, "rope_type", None)
    by_layer = kinds if isinstance(kinds, dict) else {"": kinds}
    return [
        f"{layer}_" if layer else ""
        for layer, kind in by_layer.items()
        if isinstance(kind, str) and "dynamic" in kind
    ]


def changing_frequencies(text_config: Any) -> str:
    """`dynamic` or `longrope` if frequencies depend on how far a forward reaches; else empty."""
    return next((limit.kind for limit in _limits(text_config)), "")


def _limits(text_config: Any) -> list[_Limit]:
    rope = getattr(text_config, "rope_parameters", None) or {}
    nested = [part for part in rope.values() if isinstance(part, dict) and "rope_type" in part]
    limits = []
    for parameters in nested or [rope]:
        kind = parameters.get("rope_type", "default")
        original_length = parameters.get("original_max_position_embeddings")
        if kind == "longrope" and original_length:
            limits.append(_Limit(kind, original_length))
        elif kind == "longrope" or "dynamic" in kind:
            limits.append(_Limit(kind, text_config.max_position_embeddings))
    return limits


ATTENTION = ("sdpa", "eager")
"""Attention implementations that take the mask of a tree."""


KINDS_OF_TOKENS = ("token_type_ids", "mm_token_type_ids")
"""Arguments that mark the tokens of pictures in a prompt."""

ERRORS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What models raise on inputs that they do not take."""

MEDIA = ("image", "video", "vision", "audio", "img", "boi", "eoi")
"""Prefixes of the names of token ids that a configuration has for media."""


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


def media_ids(config: Any) -> frozenset[int]:
    """Ids of pixels in a prompt, and of the marks around them; meaningless in a text."""
    ids: set[int] = set()
    for name, value in vars(config).items():
        is_id = name.endswith(("_token_id", "_token_index"))
        if is_id and name.startswith(MEDIA) and isinstance(value, int):
            ids.add(value)
    return frozenset(ids)


def around(backbone: Any) -> tuple[LogitScale | None, Any]:
    """What a model does to its logits, None for nothing, and its embeddings of answers."""
    names = ("logit_scale", "output_multiplier", "logits_scaling", "final_logit_softcapping")
    is_scaled = any(getattr(backbone.text_config, name, None) for name in names)
    if not is_scaled and not media_ids(backbone.model.config):
        return None, backbone.embed
    from draftlens.models.outer_model import embedding_of, logit_scale_of

    return logit_scale_of(backbone), embedding_of(backbone)


def represents(config: Any, kind: str, input_ids: Tensor) -> Tensor:
    """Which prompt tokens represent pixels of a kind (image, video), bool ``[B, L]``."""
    names = (f"{kind}_token_id", f"{kind}_token_index")
    ids = {getattr(config, name, None) for name in names} - {None}
    return torch.isin(
        input_ids, torch.tensor(sorted(ids), dtype=torch.long, device=input_ids.device)
    )


def attends_both_ways(decoder: nn.Module) -> bool:
    """Whether the tokens of a language model attend to all others where it gets no mask. Attention
    with an index of a layer is that of a language model, not of an encoder inside of it."""
    return any(
        getattr(module, "is_causal", None) is False and hasattr(module, "layer_idx")
        for module in decoder.modules()
    )


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A boolean mask in the additive form of eager attention."""
    bias = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    return bias.masked_fill_(~mask, torch.finfo(dtype).min)


def no_direct_calls(backbone: Any) -> str:
    """Why the language model cannot be called directly; empty if it can."""
    if backbone.states is not None and backbone.states.missing:
        return f"{backbone.name} keeps states that cannot be rolled back: {backbone.states.missing}"
    try:
        difference = _difference(backbone)
    except torch.OutOfMemoryError:
        raise
    except UnsupportedModelError as error:
        return str(error)
    except ERRORS as error:
        cause = " ".join(str(error).split()) or type(error).__name__
        return f"{backbone.name} cannot read a text of four tokens by its language model ({cause})"
    if difference is not None and difference > torch.finfo(backbone.model.dtype).max / 2:
        return (
            f"{backbone.name} forbids some ids after its output head, such as those of pictures, "
            "which draftlens does not do to draft tokens"
        )
    if difference is not None:
        return (
            f"{backbone.name} computes other logits when its language model is called directly "
            f"(they differ by {difference:.3g}), so its answers could not be kept the same"
        )
    if backbone.kinds is not None and (reason := _layer_misfit(backbone)):
        return reason
    if backbone.indexers is not None and (reason := backbone.indexers.misfit(backbone)):
        return str(reason)
    try:
        _encode_marked_tokens(backbone)
    except UnsupportedModelError as error:
        return str(error)
    except ERRORS:  # it takes no such text
        pass
    return ""


def _layer_misfit(backbone: Any) -> str:
    from draftlens.models.layer_kinds import misfit

    return misfit(backbone)


def _encode_marked_tokens(backbone: Any) -> None:
    """Encode a text with the kinds of its tokens, as a processor gives them: some models make
    masks of them (`UnsupportedModelError`)."""
    ids = torch.tensor([[1, 2, 3, 4]], device=backbone.device) % backbone.vocab_size
    backbone.encode(_marked(backbone, ids))


def _marked(backbone: Any, ids: Tensor) -> Any:
    names = inspect.signature(backbone.model.forward).parameters
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    inputs |= {name: torch.zeros_like(ids) for name in KINDS_OF_TOKENS if name in names}
    return backbone.prepare_prompt(inputs)


@torch.no_grad()
def _difference(backbone: Any) -> float | None:
    """Compare the model's own forward on four tokens with `Backbone.forward`, where the last token
    is one of a tree's two leaves, or follows after a chain was rejected; how far apart they are,
    None for rounding. No other check finds
    logits scaled after the head, ignored masks and positions that are made elsewhere."""
    ids = torch.tensor([[1, 2, 3, 4]], device=backbone.device) % backbone.vocab_size
    if backbone.both_ways:
        from draftlens.models.prompt_blocks import by_steps

        stock, prompt = by_steps(backbone, _marked(backbone, ids[:, :2]), ids[:, 2:])
    else:
        full = torch.ones_like(ids)
        stock = backbone.model(input_ids=ids, attention_mask=full, use_cache=False).logits[:, -1]
        prompt = backbone.text_prompt(ids[:, :2])
    rejected, root, accepted = ids[0, 1:].tolist()
    tree = chain(2) if backbone.chains_only else Topology((ROOT, ROOT))
    relative = 1e-3 if stock.dtype == torch.float32 else 5e-2
    bound = relative * float(stock.abs().max().clamp_min(1e-6))
    cache = backbone.new_cache(prompt, room=4)
    backbone.prefill(prompt, cache)
    mask = trees.attention_mask([2], trees.ancestors(tree, backbone.device))
    tokens = torch.tensor([[root, rejected, accepted]], device=backbone.device)
    positions = prompt.positions(trees.depths(tree, backbone.device)[None])
    called = backbone.forward(tokens, positions, cache, mask)[:, 2]
    if backbone.chains_only:  # a leaf of a tree does not see the other one; a chain is rolled back
        cache.keep([2], [[0]])
        called = backbone.forward(tokens[:, 2:], positions[..., 1:2], cache, None)[:, 0]
    difference = float((called.to(stock.device) - stock).abs().max())
    return None if difference <= bound else difference
