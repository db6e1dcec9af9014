"""Which transformers models draftlens can drive, their parts, caches and rotary positions."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin

from draftlens.core.errors import InputError
from draftlens.core.tree import upload

if TYPE_CHECKING:
    pass

CACHE_ARGUMENTS = ("cache", "past_key_values")
"""In any version of transformers."""


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


MEDIA = ("image", "video", "vision", "audio", "img", "boi", "eoi")
"""Prefixes of the names of token ids that a configuration has for media."""


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
    return torch.isin(input_ids, upload(sorted(ids), input_ids.device))


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A boolean mask in the additive form of eager attention."""
    bias = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    return bias.masked_fill_(~mask, torch.finfo(dtype).min)
