"""Reads prompts in blocks, by one process or by several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from draftlens.core.errors import UnsupportedModelError
from draftlens.core.prefill_readings import PrefillFeatures
from draftlens.models.adapter import Backbone
from draftlens.models.attention.scores import AttentionProbe
from draftlens.models.hidden_states import HiddenStates, held_states
from draftlens.models.kv_cache import HeldTokens
from draftlens.models.model_state import Slot
from draftlens.models.prompt import Prompt
from draftlens.models.prompt_cache import DIGEST_BYTES, PromptCache, prompt_digests
from draftlens.models.prompt_reading import store
from draftlens.models.prompt_subset import gather
from draftlens.prefill.base import FeatureCollector, FullPrefill, PrefillOutput, PrefillReading
from draftlens.prefill.spava.blocks import Share
from draftlens.prefill.spava.hosts import hosts_of
from draftlens.prefill.spava.one_process_attention import BlockAttention
from draftlens.prefill.spava.passing_keys import SELECTS, Choose
from draftlens.prefill.spava.rank_attention import InShards
from draftlens.prefill.spava.rank_zero import Hand, OnRankZero, RowPart, read_by_ranks
from draftlens.prefill.spava.rows import PromptRow, notes_of

PlanRows = Callable[[Prompt], Sequence[PromptRow]]
"""Returns how each row of a prompt is read."""

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
    plan: PlanRows,
    approximate: tuple[str, ...],
    zigzag: bool = True,
    select: str = "query",
    choose: Choose | None = None,
) -> PrefillOutput:
    """Read a prompt by all ranks of the backbone.

    Args:
        plan: returns how each row of a prompt is read.
        approximate: what differs from the model's own prefill if a row is read in blocks.
        zigzag: how blocks are dealt to several ranks (`prefill.spava.blocks.dealt`).
        select: how passing keys are chosen (`prefill.spava.passing_keys.SELECTS`).
        choose: chooses them instead, in one process.

    Raises:
        HostError: a rank is lost.
        UnsupportedModelError: a row would be divided, and its tokens attend to later ones.
    """
    prompt = reading.prompt
    rows = plan(prompt)
    notes = notes_of(rows)
    if len(notes) == len(rows):
        output = FullPrefill().run(backbone, reading)
        return PrefillOutput(output.logits, output.readings, notes=notes)
    check_causal(backbone, prompt)
    if hosts_of(backbone).size > 1:
        size = hosts_of(backbone).size
        hands = [_hand(prompt, rows, size, rank, zigzag, select) for rank in range(size)]
        output = read_by_ranks(backbone, hosts_of(backbone), reading, hands)
        return PrefillOutput(output.logits, output.readings, approximate, notes)
    rule = choose or SELECTS[select]
    memory = Memory.of(backbone, reading, approximate)
    if memory is not None and (begun := memory.begun(plan, rule)) is not None:
        later = replace(reading, prompt=replace(prompt, namespace=begun))
        output = FullPrefill().run(backbone, later)
        return replace(output, approximate=approximate, notes=notes)
    logits, readings = _read_alone(backbone, reading, rows, rule, memory)
    return PrefillOutput(logits, readings, approximate, notes)


def _read_alone(
    backbone: Backbone,
    reading: PrefillReading,
    rows: Sequence[PromptRow],
    rule: Choose,
    memory: Memory | None,
) -> tuple[Tensor, PrefillFeatures]:
    """Read a prompt in blocks by this process and store it; logits ``[B, 1, V]`` and readings."""
    prompt = reading.prompt
    num_layers = backbone.text_config.num_hidden_layers
    collector = FeatureCollector(reading.spec, prompt, num_layers, reading.early)
    receive = collector.receive
    if memory is not None and memory.layers:
        states = HiddenStates(backbone, prompt, memory.layers, collector.receive)
        states.hold(0, memory.held(prompt.lengths[0]))
        receive = states.receive
    probe = AttentionProbe(prompt.visual, prompt.lengths) if reading.spec.attention else None
    divisions = [row.blocks for row in rows]
    attention = BlockAttention(divisions, prompt.lengths, rule, probe)
    with backbone.alone(), backbone.watching(collector.layers, receive):
        logits = backbone.prefill(prompt, reading.cache, attention)
    if memory is not None:
        reading.cache.held[0] = memory.held(prompt.lengths[0])
        store(backbone, reading.cache)
    return logits, collector.readings(probe) if reading.spec else PrefillFeatures()


@dataclass(frozen=True)
class Memory:
    """What a prompt cache has of prompts that are read in blocks.

    Their keys depend on the question, which chooses the passing keys, so that only prompts that
    begin with the whole of an earlier one, as later turns do, find it: what follows is read
    exactly. Other questions about the same video read it again.

    Args:
        backbone: has a prompt cache.
        reading: of the prompt, which has one row.
        kind: the namespace of the call and what differs from the model's own prefill.
        digests: of the prompt, uint8 ``[n, 16]``.
        layers: whose hidden states `reading` needs.
    """

    backbone: Backbone
    reading: PrefillReading
    kind: str
    digests: np.ndarray
    layers: Sequence[int]

    @classmethod
    def of(
        cls, backbone: Backbone, reading: PrefillReading, approximate: Sequence[str]
    ) -> Memory | None:
        """None where nothing is kept, as for prompts of several rows."""
        prompt = reading.prompt
        if backbone.prompt_cache is None or prompt.namespace is None or len(prompt.lengths) > 1:
            return None
        kind = "\0".join([prompt.namespace, *approximate])
        num_layers = backbone.text_config.num_hidden_layers
        layers = FeatureCollector(reading.spec, prompt, num_layers).layers
        return cls(backbone, reading, kind, prompt_digests(prompt, 0), layers)

    def held(self, length: int) -> HeldTokens:
        """The prompt as the cache has what begins with its first `length` tokens."""
        return HeldTokens(self._name_of(length), self.digests)

    def begun(self, plan: PlanRows, rule: Choose) -> str | None:
        """The namespace of the longest prompt which this one begins with and of which all is
        stored; None if there is none. One whose hidden states are missing, as after a method that
        needs none, is read once more."""
        length = self._longest()
        if not length:
            return None
        if not self._has_states(length):
            first = gather(self.reading.prompt, [torch.arange(length)])
            cache = self.backbone.new_cache(first, 1)
            again = replace(self.reading, prompt=first, cache=cache, early=None)
            memory = replace(self, reading=again, digests=self.digests[:length])
            _read_alone(self.backbone, again, plan(first), rule, memory)
            if self._longest() != length or not self._has_states(length):
                return None  # the cache has no room for both
        return self._name_of(length)

    def _longest(self) -> int:
        """Tokens of the longest prompt which this one begins with and whose keys are all stored; 0
        for none."""
        stored, model = self._stored, self.backbone.model
        found = [0]
        for name in stored.namespaces(model):
            length = self._length_of(name)
            is_begun = 0 < length <= len(self.digests) and name == self._name_of(length)
            if is_begun and stored.shared(model, HeldTokens(name, self.digests)) >= length:
                found.append(length)
        return max(found)

    def _has_states(self, length: int) -> bool:
        """Whether the hidden states of the first `length` tokens are stored, or none are needed."""
        if not self.layers:
            return True
        held = held_states(self.held(length), self.layers)
        return self._stored.shared(self.backbone.model, held) >= length

    @property
    def _stored(self) -> PromptCache:
        assert self.backbone.prompt_cache is not None
        return self.backbone.prompt_cache

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
