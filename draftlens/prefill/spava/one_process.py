"""Reads prompts in blocks, by one process or by several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np
import torch

from draftlens.core.errors import UnsupportedModelError
from draftlens.core.prefill_readings import PrefillFeatures
from draftlens.models.adapter import Backbone
from draftlens.models.attention.scores import AttentionProbe
from draftlens.models.kv_cache import HeldTokens, KVCache
from draftlens.models.model_state import Slot
from draftlens.models.prompt import Prompt
from draftlens.models.prompt_cache import DIGEST_BYTES, prompt_digests
from draftlens.models.prompt_reading import store
from draftlens.prefill.base import FeatureCollector, FullPrefill, PrefillOutput, PrefillReading
from draftlens.prefill.spava.blocks import Share
from draftlens.prefill.spava.hosts import hosts_of
from draftlens.prefill.spava.one_process_attention import BlockAttention
from draftlens.prefill.spava.passing_keys import SELECTS, Choose
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
    select: str = "query",
    choose: Choose | None = None,
) -> PrefillOutput:
    """Read a prompt, each row as `rows` plans it, by all ranks of the backbone.

    Args:
        approximate: what differs from the model's own prefill if a row is read in blocks.
        zigzag: how blocks are dealt to several ranks (`prefill.spava.blocks.dealt`).
        select: how passing keys are chosen (`prefill.spava.passing_keys.SELECTS`).
        choose: chooses them instead, in one process.

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
        hands = [_hand(prompt, rows, size, rank, zigzag, select) for rank in range(size)]
        output = read_by_ranks(backbone, hosts_of(backbone), reading, hands)
        return PrefillOutput(output.logits, output.readings, approximate, notes)
    return _read_alone(backbone, reading, rows, approximate, choose or SELECTS[select])


def _read_alone(
    backbone: Backbone,
    reading: PrefillReading,
    rows: Sequence[PromptRow],
    approximate: tuple[str, ...],
    rule: Choose,
) -> PrefillOutput:
    """`read_in_blocks` by this process, or what follows a prompt that was read so before."""
    prompt, notes = reading.prompt, notes_of(rows)
    num_layers = backbone.text_config.num_hidden_layers
    collector = FeatureCollector(reading.spec, prompt, num_layers, reading.early)
    memory = None if collector.layers else Memory.of(backbone, prompt, approximate)
    if memory is not None and (namespace := memory.namespace()) is not None:
        later = replace(reading, prompt=replace(prompt, namespace=namespace))
        output = FullPrefill().run(backbone, later)
        return replace(output, approximate=approximate, notes=notes)
    probe = AttentionProbe(prompt.visual, prompt.lengths) if reading.spec.attention else None
    divisions = [row.blocks for row in rows]
    attention = BlockAttention(divisions, prompt.lengths, rule, probe)
    with backbone.alone(), backbone.watching(collector.layers, collector.receive):
        logits = backbone.prefill(prompt, reading.cache, attention)
    if memory is not None:
        memory.store(reading.cache)
    readings = collector.readings(probe) if reading.spec else PrefillFeatures()
    return PrefillOutput(logits, readings, approximate, notes)


@dataclass(frozen=True)
class Memory:
    """What a prompt cache has of prompts that are read in blocks.

    Their keys depend on the question, which chooses the passing keys, so that only prompts that
    begin with the whole of an earlier one, as later turns do, find it: what follows is read
    exactly. Other questions about the same video read it again.

    Args:
        backbone: has a prompt cache.
        kind: the namespace of the call and what differs from the model's own prefill.
        digests: of the prompt, uint8 ``[n, 16]``.
    """

    backbone: Backbone
    kind: str
    digests: np.ndarray

    @classmethod
    def of(cls, backbone: Backbone, prompt: Prompt, approximate: Sequence[str]) -> Memory | None:
        """None where nothing is kept, as for prompts of several rows."""
        if backbone.prompt_cache is None or prompt.namespace is None or len(prompt.lengths) > 1:
            return None
        kind = "\0".join([prompt.namespace, *approximate])
        return cls(backbone, kind, prompt_digests(prompt, 0))

    def namespace(self) -> str | None:
        """That of the longest prompt which this one begins with and of which all is stored; None if
        there is none."""
        stored, model = self.backbone.prompt_cache, self.backbone.model
        assert stored is not None
        found = {}
        for name in stored.namespaces(model):
            length = self._length_of(name)
            is_begun = 0 < length <= len(self.digests) and name == self._name_of(length)
            if is_begun and stored.shared(model, HeldTokens(name, self.digests)) >= length:
                found[length] = name
        return found[max(found)] if found else None

    def store(self, cache: KVCache) -> None:
        """Store the prompt that `cache` holds, and let what is read after it follow."""
        cache.held[0] = HeldTokens(self._name_of(len(self.digests)), self.digests)
        store(self.backbone, cache)

    def _name_of(self, length: int) -> str:
        """The namespace of the first tokens and of what follows them."""
        digest = blake2b(self.digests[:length].tobytes(), digest_size=DIGEST_BYTES).hexdigest()
        return f"{self.kind}\0{length}\0{digest}"

    def _length_of(self, name: str) -> int:
        """Tokens of the prompt of a namespace of this kind; 0 for any other namespace."""
        length = name.removeprefix(f"{self.kind}\0").partition("\0")[0]
        return int(length) if length.isdecimal() else 0


def _hand(
    prompt: Prompt, rows: Sequence[PromptRow], size: int, rank: int, zigzag: bool, select: str
) -> Hand:
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
    return Hand(parts, InShards(tuple(shares), select))


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
