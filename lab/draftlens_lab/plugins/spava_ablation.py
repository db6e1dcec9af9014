"""SPAVA with other rules for the keys that blocks pass on, to measure what the rule of the paper is
worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from draftlens.core.errors import ConfigError
from draftlens.models.adapter import Backbone
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prompt
from draftlens.prefill.base import AtOnce, PrefillOutput, PrefillReading
from draftlens.prefill.spava.blocks import divide
from draftlens.prefill.spava.config import check_whole
from draftlens.prefill.spava.one_process import check_directed, read_in_blocks
from draftlens.prefill.spava.passing_keys import NEIGHBOURS, Choose, keys_by_query
from draftlens.prefill.spava.ring_chunks import Length, check_ring_length
from draftlens.prefill.spava.rows import Division, PromptRow, prompt_rows


def random_keys(query: Tensor, key: Tensor, count: int, layer: int, block: int) -> Tensor:
    """Any keys, the same in every run; see `keys_by_query`."""
    num_heads, num_keys = key.shape[:2]
    generator = torch.Generator().manual_seed((layer << 16) + block)
    order = torch.rand(num_heads, num_keys, generator=generator)
    return order.topk(count).indices.sort(-1).values.to(key.device)


def uniform_keys(query: Tensor, key: Tensor, count: int, layer: int, block: int) -> Tensor:
    """Keys at equal distances, the same for all heads; see `keys_by_query`."""
    num_heads, num_keys = key.shape[:2]
    places = torch.arange(count, device=key.device) * num_keys // max(count, 1)
    return places.expand(num_heads, -1)


SELECTS: Mapping[str, Choose] = {
    "query": keys_by_query,
    "random": random_keys,
    "uniform": uniform_keys,
}


@dataclass(frozen=True)
class SpavaAblation(AtOnce):
    """`SpavaPrefill` in one process with other rules for passing keys.

    Args:
        anchor, passing, blocks, query_tokens: as for `SpavaPrefill`.
        select: how passing keys are chosen: `"query"` by the question, `"random"`, or `"uniform"`
            at equal distances.
        pool: as `neighbours` of `keys_by_query`, odd; 1 for none.
        rounding: `anchor` and `passing` are rounded up to a multiple of it; 128 in the paper's
            code.

    Raises:
        ConfigError: a value makes no sense.

    Example:

        >>> SpavaAblation(select="uniform", pool=1).approximate
        ('spava-ablation prefill: 16 blocks, anchor n/64, passing n/128, uniform selection',)
    """

    anchor: Length = "n/64"
    passing: Length = "n/128"
    blocks: int = 16
    query_tokens: int | None = None
    select: str = "query"
    pool: int = NEIGHBOURS
    rounding: int = 1

    def __post_init__(self) -> None:
        check_ring_length("anchor", self.anchor)
        check_ring_length("passing", self.passing)
        check_whole("blocks", self.blocks)
        if self.query_tokens is not None:
            check_whole("query_tokens", self.query_tokens)
        check_whole("rounding", self.rounding)
        check_whole("pool", self.pool)
        if self.pool % 2 == 0:
            raise ConfigError(f"pool must be odd, so that it has a middle, not {self.pool}")
        if self.select not in SELECTS:
            raise ConfigError(f"unknown select {self.select!r}; known: {', '.join(SELECTS)}")

    @property
    def approximate(self) -> tuple[str, ...]:
        words = [f"{self.blocks} blocks", f"anchor {self.anchor}", f"passing {self.passing}"]
        if self.select != "query":
            words.append(f"{self.select} selection")
        elif self.pool != NEIGHBOURS:
            words.append(f"pool {self.pool}")
        if self.rounding != 1:
            words.append(f"rounded to {self.rounding}")
        if self.query_tokens is not None:
            words.append(f"the last {self.query_tokens} tokens of texts as query")
        return (f"spava-ablation prefill: {', '.join(words)}",)

    def rows(self, prompt: Prompt) -> list[PromptRow]:
        """How each row of a prompt is divided."""
        division = Division(self.blocks, self.anchor, self.passing, self.query_tokens)
        rows = prompt_rows(prompt, division)
        return [self._rounded(row) for row in rows]

    def _rounded(self, row: PromptRow) -> PromptRow:
        blocks = row.blocks
        if blocks is None or self.rounding == 1:
            return row
        anchor, passing = (
            -(-tokens // self.rounding) * self.rounding
            for tokens in (blocks.anchor, blocks.passing)
        )
        if blocks.context - anchor < blocks.count:
            return PromptRow(
                None, f"anchor {anchor} leaves too few tokens for {self.blocks} blocks"
            )
        return PromptRow(divide(blocks.length, blocks.context, anchor, passing, blocks.count))

    def check(self, backbone: Backbone) -> None:
        check_directed(backbone)

    def new_cache(self, backbone: Backbone, prompt: Prompt, room: int) -> KVCache:
        return backbone.new_cache(prompt, room)

    def run(self, backbone: Backbone, reading: PrefillReading) -> PrefillOutput:
        choose = SELECTS[self.select]
        if self.select == "query":
            choose = partial(keys_by_query, neighbours=self.pool)
        return read_in_blocks(backbone, reading, self.rows, self.approximate, choose=choose)
