"""Families whose rotary frequencies depend on how far a pass reaches, and which of their calls are
refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from families import FAMILIES, Family

from draftlens.models.support import changing_frequencies

LIMIT = 60
"""Tokens beyond which frequencies change: between the prompts of the plans of `families`."""

SHARPNESS = 3.0
"""Factor of queries and keys each. Without it, attention in models of random weights hardly depends
on positions."""


class RotaryFamily(Family):
    """A family with attention that depends on positions."""

    def build(self, seed: int = 0, **text: Any) -> Any:
        model = super().build(seed, **text)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "language_model" in name and ("q_proj" in name or "k_proj" in name):
                    weight *= SHARPNESS
        return model


def _family(kind: str) -> Family:
    rope: dict[str, Any] = {"rope_type": kind, "factor": 2.0, "rope_theta": 1e4}
    most = LIMIT
    if kind == "longrope":
        factors = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
        rope |= {**factors, "original_max_position_embeddings": LIMIT}
        most = 16 * LIMIT
    model = next(family for family in FAMILIES if family.name == "internvl")
    named = {field.name: getattr(model, field.name) for field in fields(model)}
    text = {**model.text, "rope_parameters": rope, "max_position_embeddings": most}
    return RotaryFamily(**{**named, "name": kind, "text": text})


ROTARY = tuple(map(_family, ("dynamic", "longrope")))
NAMES = tuple(family.name for family in ROTARY)


def is_refused(family: str, lengths: Sequence[int], new: int, drafts: bool) -> bool:
    """Whether a call of prompts of these lengths and of at most `new` tokens an answer has rows, or
    draft tokens, that would change each other's frequencies."""
    if family not in NAMES or max(lengths) + new <= LIMIT:
        return False
    if family == "longrope" and min(lengths) > LIMIT:
        return False
    return drafts or min(lengths) != max(lengths)


def lengths_of(given: Mapping[str, Any]) -> list[int]:
    """Tokens of each prompt."""
    lengths: list[int] = given["attention_mask"].sum(-1).tolist()
    return lengths


def renewed(model: Any) -> Any:
    """A model with the rotary frequencies of a new one, which any short pass leaves."""
    if changing_frequencies(model.config.get_text_config(decoder=True)):
        with torch.no_grad():
            model(input_ids=torch.zeros(1, 1, dtype=torch.long))
    return model
