"""What a model does around its language model: ids that it reads as others, and logits that it
scales or caps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from draftlens.core.errors import UnsupportedModelError
from draftlens.models.inspection import ERRORS
from draftlens.models.model_state import lock_of
from draftlens.models.support import media_ids


class ReplacingEmbedding:
    """Embeddings of ids some of which a model reads as another id, as it does with placeholders of
    media that have no media: an answer may hold them."""

    def __init__(self, embed: Any, others: Mapping[int, int]) -> None:
        self._embed = embed
        self.others = others

    def ids(self, tokens: Tensor) -> Tensor:
        for placeholder, other in self.others.items():
            tokens = tokens.masked_fill(tokens == placeholder, other)
        return tokens

    def __call__(self, tokens: Tensor) -> Tensor:
        return self._embed(self.ids(tokens))  # type: ignore[no-any-return]


@torch.no_grad()
def replaced_ids(backbone: Any) -> dict[int, int]:
    """The placeholders that a model reads as other ids in its answers."""
    placeholders = sorted(id for id in media_ids(backbone.model.config) if id < backbone.vocab_size)
    others: dict[int, int] = {}
    ids = torch.tensor([[1, *placeholders]], device=backbone.device)
    try:
        read = backbone.text_prompt(ids).embeds[0, 1:] if placeholders else ()
    except (*ERRORS, UnsupportedModelError):  # it takes no placeholders without media
        return {}
    pad = getattr(backbone.text_config, "pad_token_id", None) or 0
    for placeholder, states in zip(placeholders, read, strict=True):
        for id in (placeholder, 0, pad):
            if torch.equal(states, backbone.embed(ids.new_tensor([id]))[0]):
                if id != placeholder:
                    others[placeholder] = id
                break
    return others


@dataclass(frozen=True)
class LogitScale:
    """What a model does to logits after its output head: a product, as Cohere and Muse do, a
    quotient, as Granite does, and a soft cap, as Gemma does (0: none)."""

    factor: float = 1.0
    divisor: float = 1.0
    cap: float = 0.0

    @classmethod
    def of(cls, text_config: Any) -> LogitScale:
        """As the configuration has it."""

        def value(name: str, default: float) -> float:
            return float(getattr(text_config, name, None) or default)

        factor = value("logit_scale", 1.0) * value("output_multiplier", 1.0)
        return cls(factor, value("logits_scaling", 1.0), value("final_logit_softcapping", 0.0))

    @property
    def is_quotient(self) -> bool:
        """Whether it is a quotient or nothing at all."""
        return self.factor == 1 and not self.cap

    def __call__(self, logits: Tensor) -> Tensor:
        if self.factor != 1:
            logits = logits * self.factor
        if self.divisor != 1:
            logits = logits / self.divisor
        return torch.tanh(logits / self.cap) * self.cap if self.cap else logits


def logit_scale_of(backbone: Any) -> LogitScale | None:
    """What a model does to its logits, None for nothing: some do not what their text configuration
    says, as the vision-language models of Cohere do not."""
    configured = LogitScale.of(backbone.text_config)
    if configured == LogitScale():
        return None
    if configured.is_quotient:
        return configured
    seen = _seen_scale(backbone, configured)
    return None if seen == LogitScale() else seen


@torch.no_grad()
def _seen_scale(backbone: Any, configured: LogitScale) -> LogitScale:
    raw: list[Tensor] = []

    def receive(module: Any, args: Any, output: Tensor) -> None:
        raw.append(output)

    ids = torch.tensor([[1, 2, 3, 4]], device=backbone.device) % backbone.vocab_size
    try:
        with lock_of(backbone.model).hooked(backbone.head, receive, after=True):
            logits = backbone.model(input_ids=ids, use_cache=False).logits
    except ERRORS:  # which `no_direct_calls` reports
        return configured
    scales = (configured, LogitScale())
    return min(scales, key=lambda scale: float((scale(raw[-1]) - logits).abs().max()))
