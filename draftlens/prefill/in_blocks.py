"""Reads prompts whose rows are divided into blocks, by one process or by several."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from draftlens.attention.anchor import BlockAttention
from draftlens.attention.passing import Choice, Evenly
from draftlens.attention.probe import AttentionProbe
from draftlens.core.errors import UnsupportedModelError
from draftlens.core.readings import Readings, ReadingSpec
from draftlens.models.backbone import Backbone
from draftlens.models.cache import KVCache
from draftlens.models.prompt import Prompt
from draftlens.prefill.base import PrefillOutput
from draftlens.prefill.collector import ReadingCollector
from draftlens.prefill.full import FullPrefill
from draftlens.prefill.rows import Row, notes_of

_CHECKED: weakref.WeakSet[Any] = weakref.WeakSet()
"""Models that passed `check_directed`, so that a model used in many calls pays for it once."""


@dataclass(frozen=True)
class Reading:
    """One prompt that is to be read.

    Args:
        prompt, cache, spec, num_logits, early: as for `Prefill.run`.
    """

    prompt: Prompt
    cache: KVCache
    spec: ReadingSpec
    num_logits: int
    early: Callable[[Readings], None] | None


def read_in_blocks(
    backbone: Backbone,
    reading: Reading,
    rows: Sequence[Row],
    choice: Choice,
    approximate: tuple[str, ...],
) -> PrefillOutput:
    """Read a prompt in this process.

    Args:
        backbone: reads.
        reading: what.
        rows: how each row is read.
        choice: chooses passing keys.
        approximate: what differs from the model's own prefill if a row is read in blocks.
    """
    notes = notes_of(rows)
    prompt = reading.prompt
    if len(notes) == len(rows):
        output = FullPrefill().run(
            backbone, prompt, reading.cache, reading.spec, reading.num_logits, reading.early
        )
        return PrefillOutput(output.logits, output.readings, notes=notes)
    num_layers = backbone.text_config.num_hidden_layers
    collector = ReadingCollector(reading.spec, prompt, num_layers, reading.early)
    probe = AttentionProbe(prompt.visual, prompt.lengths) if reading.spec.attention else None
    divisions = [row.blocks for row in rows]
    attention = BlockAttention(divisions, prompt.lengths, choice, probe)
    with backbone.alone(), backbone.watching(collector.layers, collector.receive):
        logits = backbone.prefill(prompt, reading.cache, attention, reading.num_logits)
    readings = collector.readings(probe) if reading.spec else Readings()
    return PrefillOutput(logits, readings, approximate, notes)


@torch.no_grad()
def check_directed(backbone: Backbone) -> None:
    """Compare two prefills of four tokens: the model's own, and one whose attention is directed.

    Raises:
        UnsupportedModelError: the model does not pass its attention on, or asks for more than a
            softmax of scaled products.
    """
    if backbone.model in _CHECKED:
        return
    ids = torch.tensor([[1, 2, 3, 4]], device=backbone.device) % backbone.vocab_size
    prompt = backbone.text_prompt(ids)
    own = backbone.prefill(prompt, backbone.new_cache(prompt, 1))
    attention = BlockAttention([None], [4], Evenly())
    directed = backbone.prefill(prompt, backbone.new_cache(prompt, 1), attention)
    relative = 1e-3 if own.dtype == torch.float32 else 5e-2
    bound = relative * float(own.abs().max().clamp_min(1e-6))
    difference = float((directed - own).abs().max())
    if attention.num_layers != backbone.text_config.num_hidden_layers or not difference <= bound:
        raise UnsupportedModelError(
            f"the attention of {backbone.name} is no softmax of scaled products in every layer, or "
            "it cannot be directed elsewhere: use prefill 'full'"
        )
    _CHECKED.add(backbone.model)
