"""How much the text of a prompt looks at each visual token, read off the target's own prefill.

Attention itself is transformers' `sdpa`, exact for every row. Beside it, for the few text rows
only, one layer at a time, the softmax is formed once more and summed: no map of all tokens by all
tokens, and no second pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

NAME = "draftlens_probe"
BLOCK = 1 << 24
"""Most scores formed at once (64 MiB in float32), or else those of one question and head."""


class Probe:
    """A reading of one prefill, eq. 4 and 5 of SpecVLM (up to a factor, which a ranking does not
    see).

    `scores` holds, for every visual token j, the sum over layers, heads and readers i of
    softmax(q_i K^T)_j, where the readers are all text tokens that can see a visual one: all text
    behind the first visual token of their row.

    Args:
        visual: which prompt tokens stand for pixels, bool ``[B, L]``.
        lengths: tokens of each row; padding comes behind them.
    """

    def __init__(self, visual: Tensor, lengths: list[int]) -> None:
        self.visual = visual
        self.layers = 0
        self.by_layer: list[Tensor] = []
        self.scores = torch.zeros(visual.shape, dtype=torch.float32, device=visual.device)
        place = torch.arange(visual.shape[1], device=visual.device)
        real = place < torch.tensor(lengths, device=visual.device)[:, None]
        reads = (visual.cumsum(1) > 0) & ~visual & real
        self.readers = [row.nonzero()[:, 0] for row in reads]

    def add(self, query: Tensor, key: Tensor, scaling: float) -> None:
        """Add one layer: query ``[B, H, L, D]``, key ``[B, H', L, D]`` with H' dividing H (grouped
        queries)."""
        self.layers += 1
        read = torch.zeros_like(self.scores)
        for row, readers in enumerate(self.readers):
            if len(readers):
                read[row] = self._row(query[row], key[row], readers.to(query.device), scaling)
        self.scores += read
        self.by_layer.append(read * self.visual)

    def _row(self, query: Tensor, key: Tensor, readers: Tensor, scaling: float) -> Tensor:
        """What one layer adds to one row, float32 ``[L]``: in parts, so that memory stays
        bounded."""
        heads, length, width = query.shape
        groups = heads // key.shape[0]
        total = torch.zeros(length, dtype=torch.float32, device=query.device)
        last = readers.repeat(
            groups
        )  # [S] the last token that each question sees, for each of its heads
        asked = query[:, readers].reshape(key.shape[0], len(last), width)
        place = torch.arange(length, device=query.device)
        heads_at_once = max(1, BLOCK // (len(last) * length))
        asked_at_once = max(1, BLOCK // length)
        for head in range(0, key.shape[0], heads_at_once):
            keys = key[head : head + heads_at_once].transpose(1, 2)
            for begin in range(0, len(last), asked_at_once):
                part = slice(begin, begin + asked_at_once)
                # In float32 from the start: unscaled products pass the largest float16.
                scores = (asked[head : head + heads_at_once, part].float() @ keys.float()) * scaling
                total += (
                    scores.masked_fill_(place > last[part, None], -torch.inf)
                    .softmax(-1)
                    .sum((0, 1))
                )
        return total.to(self.scores.device)

    def result(self) -> Tensor:
        """The scores, float32 ``[B, L]``, nothing at text and padding."""
        return self.scores * self.visual


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: Any
) -> Any:
    """transformers' `sdpa`, and a reading beside it if the forward was given a probe."""
    probe: Probe | None = kwargs.pop("probe", None)
    if probe is not None:
        scaling = kwargs.get("scaling")
        probe.add(query, key, query.shape[-1] ** -0.5 if scaling is None else scaling)
    return sdpa_attention_forward(module, query, key, value, mask, **kwargs)


AttentionInterface.register(NAME, _attend)
AttentionMaskInterface.register(NAME, sdpa_mask)


@contextmanager
def probing(decoder: Any) -> Iterator[None]:
    """While it lasts, a language model's attention takes a `probe` among its forward's keyword
    arguments."""
    before = decoder.config._attn_implementation
    decoder.config._attn_implementation = NAME
    try:
        yield
    finally:
        decoder.config._attn_implementation = before
