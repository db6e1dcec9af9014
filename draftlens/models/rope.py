"""Rotary positions whose frequencies depend on how far a forward reaches."""

from __future__ import annotations

from typing import Any

from draftlens.core.errors import InputError


def check_reach(model_name: str, text_config: Any, prompt: int, longest: int) -> None:
    """Refuse a call in which a guess could change the frequencies of the tokens before it.

    transformers makes `dynamic` frequencies anew for the furthest position of each forward beyond a
    limit, and `longrope` has one set for forwards that stay within its limit and one for those that
    do not. A pass over guesses reaches further than one over a single token, so what stands behind
    the limit would turn out otherwise.

    Args:
        model_name: for the message.
        text_config: the configuration of the language model.
        prompt: tokens of the longest prompt.
        longest: tokens of the longest prompt with the longest answer to it.

    Raises:
        InputError: the call may pass the limit; names it.
    """
    for kind, limit in _limits(text_config):
        if longest > limit and not (kind == "longrope" and prompt > limit):
            raise InputError(
                f"prompt and answer may reach {longest} tokens, and beyond {limit} a guess "
                f"would change the {kind} "
                f'rotary positions of {model_name}: ask for a shorter answer, or use method "plain"'
            )


def _limits(text_config: Any) -> list[tuple[str, int]]:
    """Kind and limit of every set of such frequencies; a model may have one for each type of its
    layers."""
    rope = getattr(text_config, "rope_parameters", None) or {}
    nested = [part for part in rope.values() if isinstance(part, dict) and "rope_type" in part]
    found = []
    for part in nested or [rope]:
        kind = part.get("rope_type", "default")
        if kind == "longrope" and part.get("original_max_position_embeddings"):
            found.append((kind, part["original_max_position_embeddings"]))
        elif kind == "longrope" or "dynamic" in kind:
            found.append((kind, text_config.max_position_embeddings))
    return found
