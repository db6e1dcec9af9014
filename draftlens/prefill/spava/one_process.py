"""Reads prompts whose rows are divided into blocks, by one process or by several."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draftlens.core.errors import UnsupportedModelError
from draftlens.core.prefill_readings import Readings
from draftlens.models.adapter import Backbone
from draftlens.models.attention.scores import AttentionProbe
from draftlens.models.model_state import Slot
from draftlens.models.prompt import Prompt
from draftlens.prefill.base import PrefillOutput
from draftlens.prefill.collector import ReadingCollector
from draftlens.prefill.full import FullPrefill
from draftlens.prefill.reading import Reading
from draftlens.prefill.spava.blocks import Share
from draftlens.prefill.spava.one_process_attention import BlockAttention
from draftlens.prefill.spava.passing_keys import Choose, keys_by_query
from draftlens.prefill.spava.rank_attention import InShards
from draftlens.prefill.spava.rank_zero import Hand, Held, OnRankZero, read_by_hosts
from draftlens.prefill.spava.rows import Row, notes_of

_CHECKED = Slot[bool]("passed check_directed")


def read_in_blocks(
    backbone: Backbone,
    reading: Reading,
    rows: Sequence[Row],
    approximate: tuple[str, ...],
    zigzag: bool = True,
    choose: Choose = keys_by_query,
) -> PrefillOutput:
    """Read a prompt, by all hosts of the backbone.

    Args:
        backbone: reads.
        reading: what.
        rows: how each row is read.
        approximate: what differs from the model's own prefill if a row is read in blocks.
        zigzag: how blocks are dealt to several hosts (`prefill.spava.blocks.dealt`).
        choose: chooses passing keys in one process; several choose them by the question.

    Raises:
        HostError: a host is lost.
    """
    notes = notes_of(rows)
    prompt = reading.prompt
    if len(notes) == len(rows):
        output = FullPrefill().run(backbone, reading)
        return PrefillOutput(output.logits, output.readings, notes=notes)
    if backbone.hosts.size > 1:
        size = backbone.hosts.size
        hands = [_hand(prompt, rows, size, rank, zigzag) for rank in range(size)]
        output = read_by_hosts(backbone, backbone.hosts, reading, hands)
        return PrefillOutput(output.logits, output.readings, approximate, notes)
    num_layers = backbone.text_config.num_hidden_layers
    collector = ReadingCollector(reading.spec, prompt, num_layers, reading.early)
    probe = AttentionProbe(prompt.visual, prompt.lengths) if reading.spec.attention else None
    divisions = [row.blocks for row in rows]
    attention = BlockAttention(divisions, prompt.lengths, choose, probe)
    with backbone.alone(), backbone.watching(collector.layers, collector.receive):
        logits = backbone.prefill(prompt, reading.cache, attention)
    readings = collector.readings(probe) if reading.spec else Readings()
    return PrefillOutput(logits, readings, approximate, notes)


def _hand(prompt: Prompt, rows: Sequence[Row], size: int, rank: int, zigzag: bool) -> Hand:
    """The share of one of several ranks."""
    shares: list[Share | None] = []
    held: list[Held] = []
    for row, length in zip(rows, prompt.lengths, strict=True):
        if row.blocks is None:
            shares.append(None)
            held.append(OnRankZero(length, rank))
        else:
            share = Share(row.blocks, rank, size, zigzag)
            shares.append(share)
            held.append(share)
    return Hand(held, InShards(tuple(shares)))


@torch.no_grad()
def check_directed(backbone: Backbone) -> None:
    """Compare two prefills of four tokens: the model's own, and one whose attention is directed.

    Raises:
        UnsupportedModelError: the model does not pass its attention on, or asks for more than a
            softmax of scaled products.
    """
    if _CHECKED.get(backbone.model):
        return
    ids = torch.tensor([[1, 2, 3, 4]], device=backbone.device) % backbone.vocab_size
    prompt = backbone.text_prompt(ids)
    own = backbone.prefill(prompt, backbone.new_cache(prompt, 1))
    attention = BlockAttention([None], [4])
    directed = backbone.prefill(prompt, backbone.new_cache(prompt, 1), attention)
    relative = 1e-3 if own.dtype == torch.float32 else 5e-2
    bound = relative * float(own.abs().max().clamp_min(1e-6))
    difference = float((directed - own).abs().max())
    if attention.num_layers != backbone.text_config.num_hidden_layers or not difference <= bound:
        raise UnsupportedModelError(
            f"the attention of {backbone.name} is no softmax of scaled products in every layer, or "
            "it cannot be directed elsewhere: use prefill 'full'"
        )
    _CHECKED.set(backbone.model, True)
