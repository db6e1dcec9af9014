"""SparseVLM: drops that the question's own words guide."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from draftlens.models.prompt import Prompt
from draftlens.pruning.base import top
from draftlens_lab.bench.lossy.base import Dropping, at_shares, check_layers, check_share

LAYER_SHARES = (2 / 32, 6 / 32, 15 / 32)
"""Where the original drops tokens: after layers 2, 6 and 15 of 32, as shares of the depth."""


@dataclass(frozen=True)
class SparseVLM(Dropping):
    """SparseVLM (arXiv 2410.04417): text tokens that are relevant to the pixels rate the visual
    tokens.

    Implemented: raters, the text tokens after the first visual token whose relevance, the mean
    over visual tokens of softmax(H_v H_q^T) of the embeddings that enter the first layer, is at
    least the mean; scores, the mean attention of the raters, over heads, in a layer; the number of
    drops from the rank of the raters' attention P to the n visual tokens that are left,
    λ(n - rank(P)); drops after several layers; original positions.

    Not implemented: the recycling of dropped tokens, which clusters the best of them and appends
    one merged token for each cluster. The original's released settings are fixed numbers of tokens
    for prompts of 576; here λ sets the number for any prompt.

    Args:
        prune_ratio: λ, share of the redundant tokens that each drop removes.
        drop_layers: layers after which tokens are dropped, counted from 1; None takes those of the
            original, at the same shares of the depth.
    """

    prune_ratio: float = 0.5
    drop_layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_share("prune_ratio", self.prune_ratio)
        object.__setattr__(self, "drop_layers", check_layers(self.drop_layers))

    def layers(self, depth: int) -> tuple[int, ...]:
        """The layers of the original at this depth, or those of the option."""
        if self.drop_layers is not None:
            return self.drop_layers
        return at_shares(depth, LAYER_SHARES)

    def readers(self, prompt: Prompt) -> Tensor:
        """The raters; the last token where no text follows visual tokens."""
        visual = prompt.visual[0]
        is_question = ~visual & (visual.cumsum(0) > 0)
        question = is_question.nonzero()[:, 0]
        if not len(question):
            return super().readers(prompt)
        embeds = prompt.embeds[0].float()
        relevance = (embeds[visual] @ embeds[question].T).softmax(-1).mean(0)
        return question[relevance >= relevance.mean()]

    def keep(self, attention: Tensor) -> Tensor:
        """The n - λ(n - rank) best rated tokens."""
        count = attention.shape[1]
        if not count:
            return super().keep(attention)
        rank = int(torch.linalg.matrix_rank(attention))
        dropped = int(self.prune_ratio * (count - rank) + 1e-9)
        return top(attention.mean(0), count - dropped)
