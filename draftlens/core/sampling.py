"""From logits to the scores that decide a token: temperature, top-k, top-p and other processors.

They are those of transformers, in the order of `generate`, applied at every node of a draft tree
with its own history. Shared noise makes draft and target draw alike.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex

import torch
from torch import Tensor
from transformers.generation import logits_process as hf

from draftlens.core.errors import ConfigError
from draftlens.core.forms import FormProcessor
from draftlens.core.options import shown

LogitsProcessor = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class NodeHistories:
    """Nodes of one row with histories of equal length, int64 ``[len(nodes), length]``. `index` is
    the row in the scores, `row` the one in the processors' call of `generate`."""

    index: int
    nodes: list[int]
    ids: Tensor
    row: int
    num_rows: int


Histories = Callable[[], Iterable[NodeHistories]]

SEED_MASK = 2**63 - 1
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15
"""The increment of SplitMix64, which keeps the seeds of rows far apart."""

HISTORY_FREE = (
    hf.TemperatureLogitsWarper,
    hf.TopKLogitsWarper,
    hf.TopPLogitsWarper,
    hf.MinPLogitsWarper,
    hf.TypicalLogitsWarper,
    hf.EpsilonLogitsWarper,
    hf.EtaLogitsWarper,
    hf.InfNanRemoveLogitsProcessor,
    hf.SuppressTokensLogitsProcessor,
    hf.LogitNormalization,
)
"""Processors that read the scores alone: one call for all nodes of all rows."""

ROW_BLIND = (
    hf.MinLengthLogitsProcessor,
    hf.MinNewTokensLengthLogitsProcessor,
    hf.RepetitionPenaltyLogitsProcessor,
    hf.NoRepeatNGramLogitsProcessor,
    hf.SequenceBiasLogitsProcessor,
    hf.NoBadWordsLogitsProcessor,
    hf.ForcedBOSTokenLogitsProcessor,
    hf.ForcedEOSTokenLogitsProcessor,
    hf.ExponentialDecayLengthPenalty,
    hf.SuppressTokensAtBeginLogitsProcessor,
)
"""Processors that read histories but treat all rows alike: one call for all nodes of one length."""

LEAST_TEMPERATURE = 1e-30
"""Below it the scores of a token may not fit float32."""

STATEFUL = (
    "UnbatchedClassifierFreeGuidanceLogitsProcessor",
    "SynthIDTextWatermarkLogitsProcessor",
    "WhisperTimeStampLogitsProcessor",
)
"""Processors with state between calls, which a rejected draft token would corrupt."""


def check_processors(processors: Sequence[LogitsProcessor]) -> None:
    for processor in processors:
        name = type(processor).__name__
        if name in STATEFUL:
            raise ConfigError(
                f"{name} keeps state from token to token, so draft tokens cannot be checked with it"
            )
        if (
            isinstance(processor, hf.TemperatureLogitsWarper)
            and processor.temperature < LEAST_TEMPERATURE
        ):
            raise ConfigError(
                f"temperature {processor.temperature} is too small to sample with: decode greedily "
                f"(do_sample=False, temperature 0 of a server), or use {LEAST_TEMPERATURE} or more"
            )


@dataclass(frozen=True, eq=False)
class SamplingRule:
    """How a distribution becomes a token; draft and target use the same object.

    `processors` are transformers logits processors, in order; without `do_sample` the argmax is
    taken; `acceptance` is `"coupled"` or `"rejection"` (`core/verify.py`).
    """

    processors: tuple[LogitsProcessor, ...] = ()
    do_sample: bool = False
    acceptance: str = "coupled"

    @property
    def rejects(self) -> bool:
        """Whether draft tokens are accepted by chance (the papers' rule) instead of by equality."""
        return self.do_sample and self.acceptance == "rejection"

    def process(self, logits: Tensor, histories: Histories) -> Tensor:
        """Scores ``[B, N, V]`` after all processors, float32; without processors the logits
        themselves. `histories` is called only if a processor reads them."""
        if not self.processors:
            return logits
        scores = logits.float()
        groups: list[NodeHistories] | None = None
        for processor in self.processors:
            if type(processor) in HISTORY_FREE:
                # None of these reads the ids; an empty tensor takes their place.
                no_ids = scores.new_empty(0, dtype=torch.long)
                scores = processor(no_ids, scores.flatten(0, 1)).view_as(scores)
                continue
            if groups is None:
                groups = list(histories())
            scores = scores.clone()
            for group in groups:
                scores[group.index, group.nodes] = _apply(processor, group, scores)
        return scores

    def ranking(self, scores: Tensor, seeds: Tensor, steps: Tensor) -> Tensor:
        """Scores plus Gumbel noise if sampling, ``[B, N, V]``: the argmax is the next token.

        `seeds` are int64 ``[B]``; `steps` the token's index in its answer, int64 ``[B, N]``.
        """
        if not self.do_sample:
            return scores
        noise = gumbel(seeds[:, None], steps, scores.shape[-1])
        return torch.log_softmax(scores.double(), -1) + noise.to(scores.device)


def _apply(processor: Any, group: NodeHistories, scores: Tensor) -> Tensor:
    """One processor's scores for a group of nodes, ``[n, V]``."""
    # The processors are made for the target's device; a draft may run on another.
    before = scores[group.index, group.nodes].to(group.ids.device)
    if type(processor) is hf.RepetitionPenaltyLogitsProcessor:
        processor = _repetition_penalty_of_row(processor, group)
    if is_form := isinstance(processor, FormProcessor):
        processor = processor.of_row(group.row)
    if is_form or type(processor) in ROW_BLIND:
        after: Tensor = processor(group.ids, before)
        return after.to(scores.device)
    # Any other processor may distinguish rows by index. So each node is processed in the place of
    # its row, in a batch of as many rows as the call has.
    rows = [
        processor(ids.repeat(group.num_rows, 1), node_scores.repeat(group.num_rows, 1))[group.row]
        for ids, node_scores in zip(group.ids, before, strict=True)
    ]
    return torch.stack(rows).to(scores.device)


def _repetition_penalty_of_row(processor: Any, group: NodeHistories) -> Any:
    """The penalty with the prompt length of the group's row, if rows have their own."""
    if not isinstance(processor.prompt_ignore_length, Tensor):
        return processor
    length = processor.prompt_ignore_length[group.row].expand(len(group.ids))
    return hf.RepetitionPenaltyLogitsProcessor(processor.penalty, length)


def as_seed(seed: SupportsIndex) -> int:
    """A seed as a Python int; raises ConfigError if it is not a whole number."""
    try:
        return operator.index(seed)
    except TypeError:
        raise ConfigError(f"seed must be a whole number, not {shown(seed)}") from None


def row_seeds(seed: int, num_rows: int) -> list[int]:
    """Different seeds for a call's rows, so that equal prompts differ; the first is `seed`."""
    return [(seed + row * _GOLDEN_GAMMA) & SEED_MASK for row in range(num_rows)]


def generator_of(seed: int) -> torch.Generator:
    """A CPU generator; the low 63 bits of the seed count."""
    return torch.Generator().manual_seed(seed & SEED_MASK)


def gumbel(seeds: Tensor, steps: Tensor, vocab: int) -> Tensor:
    """Standard Gumbel noise as a function of (seed, step, token id) alone.

    ``argmax(log p + gumbel)`` is a draw from p. Draft and target draw with the same noise on any
    device, and a token depends neither on the number of draft tokens before it nor on other rows.

    Args:
        seeds, steps: int64, broadcast against each other to shape S. Seeds lie in [0, 2**63).

    Returns:
        float64 ``[*S, V]``. Vocabularies of different sizes share the values of common ids.
    """
    ids = torch.arange(vocab, device=steps.device)
    key = _mix(_mix(_mix(seeds.to(steps.device))) + steps)
    bits = _mix(key[..., None] + ids)
    # 52 bits and a half are exact in a double, so the ends 0 and 1, where the noise is infinite,
    # are never reached.
    uniform = (((bits >> 12) & (2**52 - 1)).double() + 0.5) * 2.0**-52
    return -torch.log(-torch.log(uniform))


def _mix(x: Tensor) -> Tensor:
    """The finalizer of SplitMix64 (Steele et al. 2014); int64 products wrap like unsigned ones."""
    x = x + -0x61C8864680B583EB
    x = (x ^ ((x >> 30) & (2**34 - 1))) * -0x40A7B892E31B1A47
    x = (x ^ ((x >> 27) & (2**37 - 1))) * -0x6B2FB644ECCEEE15
    return x ^ ((x >> 31) & (2**33 - 1))
