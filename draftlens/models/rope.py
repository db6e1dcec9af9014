"""Rotary positions with frequencies that depend on the length of the sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from draftlens.core.errors import InputError


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
