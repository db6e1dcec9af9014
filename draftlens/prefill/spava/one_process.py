"""Reads prompts in blocks, by one process or by several."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draftlens.core.errors import UnsupportedModelError
from draftlens.core.prefill_readings import PrefillFeatures
from draftlens.models.adapter import Backbone
from draftlens.models.attention.scores import AttentionProbe
from draftlens.models.model_state import Slot
from draftlens.models.prompt import Prompt
from draftlens.prefill.base import FeatureCollector, FullPrefill, PrefillOutput, PrefillReading
from draftlens.prefill.spava.blocks import Share
from draftlens.prefill.spava.hosts import hosts_of
from draftlens.prefill.spava.one_process_attention import BlockAttention
from draftlens.prefill.spava.passing_keys import Choose, keys_by_query
from draftlens.prefill.spava.rank_attention import InShards
from draftlens.prefill.spava.rank_zero import Hand, OnRankZero, RowPart, read_by_ranks
from draftlens.prefill.spava.rows import PromptRow, notes_of

_CHECKED = Slot[bool]("passed check_directed")


def check_causal(backbone: Backbone, prompt: Prompt) -> None:
    """Raise `UnsupportedModelError` for a prompt whose tokens attend to later ones, since those may
    lie in another part of it."""
    if prompt.ahead is not None:
        raise UnsupportedModelError(
            f"tokens of the prompt attend to later ones in {backbone.name}, so it is not divided: "
            "use prefill 'full'"
        )


def read_in_blocks(
    backbone: Backbone,
    reading: PrefillReading,
    rows: Sequence[PromptRow],
    approximate: tuple[str, ...],
    zigzag: bool = True,
    choose: Choose = keys_by_query,
) -> PrefillOutput:
    """Read a prompt, each row as `rows` plans it, by all ranks of the backbone.

    Args:
        approximate: what differs from the model's own prefill if a row is read in blocks.
        zigzag: how blocks are dealt to several ranks (`prefill.spava.blocks.dealt`).
        choose: chooses passing keys in one process; several ranks choose them by the question.

    Raises:
        HostError: a rank is lost.
        UnsupportedModelError: a row would be divided, and its tokens attend to later ones.
    """
    notes = notes_of(rows)
    prompt = reading.prompt
    if len(notes) == len(rows):
        output = FullPrefill().run(backbone, reading)
        return PrefillOutput(output.logits, output.readings, notes=notes)
    check_causal(backbone, prompt)
    if hosts_of(backbone).size > 1:
        size = hosts_of(backbone).size
        hands = [_hand(prompt, rows, size, rank, zigzag) for rank in range(size)]
        output = read_by_ranks(backbone, hosts_of(backbone), reading, hands)
        return PrefillOutput(output.logits, output.readings, approximate, notes)
    num_layers = backbone.text_config.num_hidden_layers
    collector = FeatureCollector(reading.spec, prompt, num_layers, reading.early)
    probe = AttentionProbe(prompt.visual, prompt.lengths) if reading.spec.attention else None
    divisions = [row.blocks for row in rows]
    attention = BlockAttention(divisions, prompt.lengths, choose, probe)
    with backbone.alone(), backbone.watching(collector.layers, collector.receive):
        logits = backbone.prefill(prompt, reading.cache, attention)
    readings = collector.readings(probe) if reading.spec else PrefillFeatures()
    return PrefillOutput(logits, readings, approximate, notes)


def _hand(prompt: Prompt, rows: Sequence[PromptRow], size: int, rank: int, zigzag: bool) -> Hand:
    shares: list[Share | None] = []
    parts: list[RowPart] = []
    for row, length in zip(rows, prompt.lengths, strict=True):
        if row.blocks is None:
            shares.append(None)
            parts.append(OnRankZero(length, rank))
        else:
            share = Share(row.blocks, rank, size, zigzag)
            shares.append(share)
            parts.append(share)
    return Hand(parts, InShards(tuple(shares)))


@torch.no_grad()
def check_directed(backbone: Backbone) -> None:
    """Compare two prefills of four tokens: the model's own, and one whose attention is directed.
    Raises `UnsupportedModelError` if the model does not pass its attention on, or needs more than a
    softmax of scaled products."""
    if _CHECKED.get(backbone.model):
        return
    if backbone.kinds is not None:
        raise UnsupportedModelError(
            f"{backbone.name} has layers with sliding windows or shared keys, whose prompts are "
            "not divided: use prefill 'full'"
        )
    if backbone.chains_only:
        raise UnsupportedModelError(
            f"{backbone.chains_only}, so its prompts are not read in blocks: use prefill 'full'"
        )
    ids = torch.tensor([[1, 2, 3, 4]], device=backbone.device) % backbone.vocab_size
    prompt = backbone.text_prompt(ids)
    stock = backbone.prefill(prompt, backbone.new_cache(prompt, 1))
    attention = BlockAttention([None], [4])
    directed = backbone.prefill(prompt, backbone.new_cache(prompt, 1), attention)
    relative = 1e-3 if stock.dtype == torch.float32 else 5e-2
    bound = relative * float(stock.abs().max().clamp_min(1e-6))
    difference = float((directed - stock).abs().max())
    if attention.num_layers != backbone.text_config.num_hidden_layers or not difference <= bound:
        raise UnsupportedModelError(
            f"the attention of {backbone.name} is no softmax of scaled products in every layer, or "
            "it cannot be directed elsewhere: use prefill 'full'"
        )
    _CHECKED.set(backbone.model, True)
